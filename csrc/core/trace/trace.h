// Traces the work of the layers. When off, it costs one test of a flag for each step.
#pragma once

#include "core/layer.h"

namespace torchlayers {

// Whether steps are traced: recorded by `torchlayers.trace()` (core/trace/call_recorder.h), or
// printed to stderr with TORCHLAYERS_TRACE=1 in the environment. With TORCHLAYERS_TRACE=2 each step
// is preceded by the stack and the thread's keys as the front and the back find them.
extern bool tracing;

// What a layer does with an operator:
// "process"    receives it, or "typed", by a kernel of the operator's own signature
// "rule"       applies a rule of ours
// "torch"      lets torch's kernels for its keys do the work
// "decompose"  runs the operators that it is made of
// "send_down"  passes it to the layers below
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

// Traces steps although nothing prints them.
void trace_for_recorder(bool is_on);

} // namespace torchlayers
