// Traces the work of the layers, one line per step. When off, it costs one test of a flag.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "core/layer.h"

namespace torchlayers {

// The step ("process", "send_down", "rule" or "pull_back"), the operator, the layer
// ("grad (level 1)") and its level.
using TraceEvent = std::tuple<std::string, std::string, std::string, int64_t>;

// Whether steps are traced: collected by `torchlayers.trace()`, or printed to stderr with
// TORCHLAYERS_TRACE=1 in the environment. With TORCHLAYERS_TRACE=2 each step is preceded by the
// stack and the thread's keys as the front and the back find them.
extern bool tracing;
void trace_step(const char* step, const Operator& op, const Layer& layer);

inline void trace(const char* step, const Operator& op, const Layer& layer) {
  if (C10_UNLIKELY(tracing)) {
    trace_step(step, op, layer);
  }
}

void print_state(const char* where, const Operator& op);

// `where`: "front" or "back".
inline void trace_state(const char* where, const Operator& op) {
  if (C10_UNLIKELY(tracing)) {
    print_state(where, op);
  }
}

// `who` runs a reverse pass: "torchlayers", or "autograd" for torch's engine. The layer is null
// where it has ended, as vjp's has.
void trace_vjp(const char* who, const Layer* layer);

// Collects steps from now on, on every thread. Nested recordings each get every step.
void start_recording();
std::vector<TraceEvent> stop_recording();

} // namespace torchlayers
