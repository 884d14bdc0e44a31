// The levels, autograd graphs and tangents of a tensor, without its values.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/saved_stack.h"

namespace torchlayers {

// The levels of a tensor, its place in the autograd graph of each, and its tangents, to be given to
// a recomputed tensor with the same values. It leaves out the place in the graph of the level that
// saves this object, because a node that saves its own result would keep itself alive. It holds no
// values except those of the tangents, and not those if the tangents are recomputed too.
class History {
 public:
  History(const at::Tensor& tensor, int64_t kept_at, bool keeps_tangents);

  // Replaces each place by one of its own that leads nowhere.
  void cut();

  // The recomputed values with this history. The levels are those of `stack`, once the thread's.
  at::Tensor given_to(const at::Tensor& numbers, const StackCopy& stack) const {
    return given_to(numbers, stack, 0);
  }

 private:
  enum class Kind { Wrapped, Custom, Batched, Functional, Plain };
  struct Level {
    Kind kind;
    int64_t level;
    torch::autograd::Edge place;
    at::Tensor tangent;                // if it is saved
    std::shared_ptr<History> remade{}; // of a tangent that is recomputed
    at::Tensor whole{};                // of a custom layer: the tensor itself
  };

  at::Tensor given_to(const at::Tensor& numbers, const StackCopy& stack, size_t i) const;

  std::vector<Level> levels_; // the innermost transform's first
};

// The same values and tangents, which require grad at the same levels, but in a graph that ends
// there: for functions that are run again, whose results get their places otherwise.
at::Tensor with_graphs_cut(const at::Tensor& tensor);

} // namespace torchlayers
