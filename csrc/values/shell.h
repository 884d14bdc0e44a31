// What the layers have put around a tensor's numbers, apart from them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace torchlayers {

// The levels of a tensor that are on, how it is batched and its tangents, without its numbers, its
// place in any graph, and its wrappers of layers that have ended.
class Shell {
 public:
  // Takes the tensor apart: to `numbers` go those of its tangents, and then its own, plain tensors
  // without a history.
  Shell(const at::Tensor& tensor, std::vector<at::Tensor>& numbers);

  // Such a tensor of as many plain ones, on the same layers. No operator runs.
  at::Tensor around(at::ArrayRef<at::Tensor> numbers) const;

 private:
  enum class Kind { Wrapped, Batched, Functional, Plain };
  struct Level {
    Kind kind;
    int64_t level;
    int64_t dim;                    // of a batch
    std::unique_ptr<Shell> tangent; // or null
  };

  at::Tensor around(const at::Tensor*& next) const;
  at::Tensor around(const at::Tensor*& next, size_t i) const;

  std::vector<Level> levels_; // the innermost transform's first
};

// The same numbers and tangents, without a place in any graph. No operator runs.
at::Tensor without_graphs(const at::Tensor& tensor);

} // namespace torchlayers
