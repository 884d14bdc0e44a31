// Records calls of operators, with what the layers did to them: torchlayers.trace().
#pragma once

#include <ATen/record_function.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torchlayers {

// NOTE [Recorded calls]
// The dispatcher tells torch's observers (at::RecordFunction) of every call of an operator, and a
// layer that sends an operator down calls it again. So one observer sees an operator's whole way
// down the stack, a call inside the one above it, and the kernel at the end; where there is no
// observer, it costs nothing. What only the layers know, their steps, is added to the innermost
// call of the thread. A transform's layer is a range of its own, which torch.profiler sees too
// (core/entry.cpp); so are a call of a compiled function (python/compiled/compiled_call.cpp) and
// each kernel of its code (compiled/program.cpp). The recorder may be asked for by several `with
// torchlayers.trace()` at once, on any threads: calls are numbered, and each of them gets the calls
// since its own first number.
// torch 2.15 calls operators of torch.library.custom_op without the dispatcher where nothing asks
// for it, and observers are not told. The front tells them of these, so that layers' calls are all
// there.

// A tensor as the operator sees it.
struct RecordedTensor {
  c10::ScalarType dtype;
  c10::SmallVector<int64_t, 4> sizes;
  int64_t level = 0;                // of the outermost wrapper; 0 for a plain tensor
  std::optional<int64_t> batch_dim; // in its value, if it is batched at this level
};

struct RecordedStep {
  const char* step; // core/trace/trace.h
  std::string layer;
  int64_t level;
};

struct RecordedCall {
  enum class Kind : uint8_t { Operator, Layer, Compiled, Range };

  Kind kind;
  // "aten::mul.Tensor"; "vmap" for a layer; a compiled function's name; "inductor::cpp_fused_mul_0"
  // for a kernel of compiled code, which is an operator here; else torch's or the user's range.
  std::string name;
  int64_t level = 0;    // of a layer
  int64_t samples = -1; // of a vmap
  int64_t parent;       // the number of the call that it is part of; -1 if there is none
  int64_t thread;
  int64_t begin;   // in nanoseconds of the system's clock
  int64_t end = 0; // 0 if it has not ended yet
  bool has_raised = false;
  bool is_kernel = false;   // below all layers, and of torch.func's
  int64_t line = -1;        // of the user's code (callbacks.user_line)
  bool is_captured = false; // of a compiled function, which was captured for it
  int64_t run = -1;         // what ran it, by a number that Python knows (python/trace.cpp)
  c10::SmallVector<RecordedTensor, 2> inputs;
  c10::SmallVector<RecordedTensor, 1> outputs;
  c10::SmallVector<RecordedStep, 2> steps;
};

struct Recording {
  int64_t first; // the number of the first call
  std::vector<RecordedCall> calls;
  int64_t dropped; // calls before those, which did not fit into the limit
};

// Starts to record, keeping the last `limit` calls; returns the number that stops it.
int64_t start_recording(int64_t limit);
Recording stop_recording(int64_t started);

// Whether calls are recorded, and the innermost of this thread is of another operator.
bool is_unrecorded(const std::string& op);

// Adds a step to the innermost call on this thread.
void record_step(const char* step, const std::string& op, const std::string& layer, int64_t level);

// Adds to the innermost call of a compiled function on this thread: that the function was captured
// for it, and what ran it.
void record_capture();
void record_run(int64_t run);

// Whether anybody observes ranges on this thread: a trace, or torch.profiler.
inline bool is_observed() {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
}

// A range, as observers see it: "torchlayers::vmap (level 1)".
class ObservedRange {
 public:
  enum class Of : uint8_t { Layer, Compiled, Kernel };
  ObservedRange(Of what, const std::string& name);

 private:
  at::RecordFunction range_;
};

} // namespace torchlayers
