// The wrappers that layers have put around a tensor's values, without the values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace torchlayers {

// A tensor's active levels, how it is batched, and its tangents; without its values, its place in
// any graph, and the wrappers of layers that have ended.
class Shell {
 public:
  // Takes the tensor apart. Appends the values of its tangents and then its own to `numbers`, as
  // plain tensors without a history.
  Shell(const at::Tensor& tensor, std::vector<at::Tensor>& numbers);

  // Rebuilds such a tensor from as many plain ones, on the same layers. No operator runs.
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

// The same values and tangents, without a place in any graph. No operator runs.
at::Tensor without_graphs(const at::Tensor& tensor);

// The tensor as the layer of a lower level sees it.
const at::Tensor& value_at(const at::Tensor& tensor, int64_t level);

// Counts as a write to the tensor, at every level.
void bump_versions(const at::Tensor& tensor);

} // namespace torchlayers
