// What the layers and plain autograd know of a tensor besides its numbers.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/earlier_stack.h"

namespace torchlayers {

// The levels that a tensor is of, its place in the graph of each, and its tangents, for a tensor
// that is made again from the same numbers. Not its place in the graph of the level that keeps
// this: who keeps a result would keep its node. It holds no numbers; but those of the tangents,
// unless these are made again too.
class History {
 public:
  History(const at::Tensor& tensor, int64_t kept_at, bool keeps_tangents);

  // Those numbers with this history. The levels are those of the stack, which was the thread's.
  at::Tensor given_to(const at::Tensor& numbers, const StackCopy& stack) const {
    return given_to(numbers, stack, 0);
  }

 private:
  enum class Kind { Wrapped, Batched, Functional, Plain };
  struct Level {
    Kind kind;
    int64_t level;
    torch::autograd::Edge place;
    at::Tensor tangent;                      // if it is kept
    std::shared_ptr<const History> remade{}; // of a tangent that is made again
  };

  at::Tensor given_to(const at::Tensor& numbers, const StackCopy& stack, size_t i) const;

  std::vector<Level> levels_; // the innermost transform's first
};

} // namespace torchlayers
