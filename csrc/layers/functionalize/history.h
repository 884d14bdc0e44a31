// What derivatives see of functional tensors that are viewed or written to unrecorded.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/operator.h"

namespace torchlayers {

// NOTE [Writes that are not recorded]
// A write under no_grad changes a tensor's values and leaves its place in the graph as it was. For
// a functional tensor the write is an operator whose result has no place at all: after
// F.cosine_similarity has clamped its norms so, they would be constants. So the memory gets the
// written values with the history that it had before. Views are replayed with recording on, because
// one that was made before may be read under no_grad first; those that were made under no_grad stay
// constants.
class Unrecorded {
 public:
  // For an operator that is called under no_grad, whose functional arguments it brings up to date.
  Unrecorded(const Operator& op, const Args& args, int64_t level);

  // Once the operator has run.
  void finish(const Args& results) const;

 private:
  struct Written {
    at::Tensor tensor;
    at::Tensor before; // the value of its memory
  };

  const Operator& op_;
  int64_t level_;
  std::vector<Written> written_;
  std::vector<at::Tensor> viewed_;
};

// Whether it has a history at some level, or is a tensor of a layer in Python, whose parts may.
bool may_have_history(const at::Tensor& tensor);

// These values with the places of another tensor in the graphs of all levels. `is_detached`: with
// its tangents as well, for a write through detach(); otherwise with those of the values, which a
// write under no_grad has changed.
at::Tensor with_history_of(const at::Tensor& other, const at::Tensor& values, bool is_detached);

} // namespace torchlayers
