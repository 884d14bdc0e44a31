#include "core/trace.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <sstream>
#include <string_view>

#include "core/keys.h"
#include "core/stack.h"

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
std::mutex mutex;
std::vector<std::vector<TraceEvent>> recordings;

void record(const TraceEvent& event) {
  std::lock_guard<std::mutex> lock(mutex);
  if (printing != Printing::Nothing) {
    const auto& [step, op, layer, level] = event;
    const auto indent = static_cast<size_t>(2 * std::max<int64_t>(level - 1, 0));
    std::cerr << std::string(indent, ' ') << layer << " " << step << " " << op << "\n";
  }
  for (auto& recording : recordings) {
    recording.push_back(event);
  }
}

} // namespace

bool tracing = printing != Printing::Nothing;

void trace_step(const char* step, const Operator& op, const Layer& layer) {
  record({step, op.name(), layer.name(), layer.level()});
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
  std::lock_guard<std::mutex> lock(mutex);
  std::cerr << lines.str();
}

void trace_vjp(const char* who, const Layer* layer) {
  if (C10_UNLIKELY(tracing)) {
    record({"pull_back", who, layer ? layer->name() : "vjp", layer ? layer->level() : 0});
  }
}

void start_recording() {
  std::lock_guard<std::mutex> lock(mutex);
  recordings.emplace_back();
  tracing = true;
}

std::vector<TraceEvent> stop_recording() {
  std::lock_guard<std::mutex> lock(mutex);
  TORCH_CHECK(!recordings.empty(), "torchlayers: no trace is being collected");
  auto events = std::move(recordings.back());
  recordings.pop_back();
  tracing = printing != Printing::Nothing || !recordings.empty();
  return events;
}

} // namespace torchlayers
