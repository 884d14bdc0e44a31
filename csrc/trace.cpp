#include "trace.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <string_view>

namespace torchlayers {
namespace {

bool asked_for_by_environment() {
  const char* value = std::getenv("TORCHLAYERS_TRACE");
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

const bool printing = asked_for_by_environment();
std::mutex mutex;
std::vector<std::vector<TraceEvent>> recordings;

void record(const TraceEvent& event) {
  std::lock_guard<std::mutex> lock(mutex);
  if (printing) {
    const auto indent = static_cast<size_t>(2 * std::max<int64_t>(event.level - 1, 0));
    std::cerr << std::string(indent, ' ') << event.layer << " " << event.step << " " << event.op
              << "\n";
  }
  for (auto& recording : recordings) {
    recording.push_back(event);
  }
}

} // namespace

bool tracing = printing;

void trace_step(const char* step, const Operator& op, const Layer& layer) {
  record({step, op.name(), layer.name(), layer.level()});
}

void trace_pull_back(const char* who, const Layer* layer) {
  if (layer != nullptr) {
    record({"pull_back", who, layer->name(), layer->level()});
  } else {
    record({"pull_back", who, "vjp", 0});
  }
}

void start_recording() {
  std::lock_guard<std::mutex> lock(mutex);
  recordings.emplace_back();
  tracing = true;
}

std::vector<TraceEvent> stop_recording() {
  std::lock_guard<std::mutex> lock(mutex);
  TORCH_CHECK(!recordings.empty(), "torchlayers: no recording is under way");
  auto events = std::move(recordings.back());
  recordings.pop_back();
  tracing = printing || !recordings.empty();
  return events;
}

} // namespace torchlayers
