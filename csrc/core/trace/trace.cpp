#include "core/trace/trace.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>

#include "core/keys.h"
#include "core/stack.h"
#include "core/trace/call_recorder.h"

namespace torchlayers {
namespace {

enum class Printing { Nothing, Steps, StepsAndState };

Printing asked_for_by_environment() {
  const char* value = std::getenv("TORCHLAYERS_TRACE");
  const std::string_view asked = value != nullptr ? value : "";
  if (asked.empty() || asked == "0") {
    return Printing::Nothing;
  }
  return asked == "2" ? Printing::StepsAndState : Printing::Steps;
}

const Printing printing = asked_for_by_environment();
std::mutex mutex; // for printing

void say(const char* step, const std::string& op, const std::string& layer, int64_t level) {
  if (printing != Printing::Nothing) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto indent = static_cast<size_t>(2 * std::max<int64_t>(level - 1, 0));
    std::cerr << std::string(indent, ' ') << layer << " " << step << " " << op << "\n";
  }
}

} // namespace

bool tracing = printing != Printing::Nothing;

void trace_for_recorder(bool is_on) {
  tracing = is_on || printing != Printing::Nothing;
}

void trace_step(const char* step, const Operator& op, const Layer& layer) {
  const std::string name = op.name();
  say(step, name, layer.name(), layer.level());
  record_step(step, name, layer.kind(), layer.level());
}

void print_state(const char* where, const Operator& op) {
  if (printing != Printing::StepsAndState) {
    return;
  }
  const auto keys = thread_keys();
  std::ostringstream lines; // printed at once: other threads print too
  lines << where << " " << op.name() << " stack " << describe_stack() << "\n  included "
        << c10::toString(keys.included()) << "\n  excluded " << c10::toString(keys.excluded())
        << "\n";
  const std::lock_guard<std::mutex> lock(mutex);
  std::cerr << lines.str();
}

void trace_vjp(const char* who, const Layer* layer) {
  if (C10_UNLIKELY(tracing)) {
    say("pull_back", who, layer ? layer->name() : "vjp", layer ? layer->level() : 0);
    record_step("pull_back", who, layer ? layer->kind() : "vjp", layer ? layer->level() : 0);
  }
}

} // namespace torchlayers
