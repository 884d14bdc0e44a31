// Arguments whose batch dimensions line up without a batching rule.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/layer.h"

namespace torchlayers {

// NOTE [Batched alike]
// If every batched argument has its batch dimension in front, and at least as many dimensions as
// any other argument, broadcasting aligns the values as it would align those of each sample: the
// operator is simply called on them, without a batching rule. A batched (2, 3) and an unbatched (3)
// are (B, 2, 3) and (3). But a batched (3) and an unbatched (2, 3) would be (B, 3) and (2, 3):
// these are aligned first, as (B, 1, 3) and (2, 3), and so are values with the batch dimension
// elsewhere. If a kernel does not broadcast, all values are expanded to one shape. Samples without
// dimensions are tensors with one dimension here, and count for more in type promotion, so they are
// only accepted where nothing is promoted. torch's rules handle the others.
class Alike {
 public:
  explicit Alike(const Layer& layer) : layer_(layer) {}

  void look_at(const at::Tensor& tensor);
  void look_at(const at::Scalar&) {}

  bool any_batched() const {
    return batched_rank_ >= 0;
  }
  // Sufficient where nothing is promoted.
  bool is_lined_up() const {
    return fits_ && batched_rank_ >= 0 && batched_rank_ == highest_rank_;
  }
  bool holds() const {
    return is_lined_up() && !(highest_rank_ == 0 && mixes_dtypes_);
  }

  // The argument that the operator is called with on the layer below.
  const at::Tensor& value(const at::Tensor& tensor) const;
  const at::Scalar& value(const at::Scalar& scalar) const {
    return scalar;
  }
  at::Tensor batched(const at::Tensor& result) const;
  // Restores the arguments from those that the operator was called with below.
  void put_back(Args& args, size_t count) const;

 private:
  const Layer& layer_;
  int64_t batched_rank_ = -1; // -1: none yet
  int64_t highest_rank_ = 0;
  std::optional<at::ScalarType> dtype_;
  bool mixes_dtypes_ = false;
  bool fits_ = true;
};

} // namespace torchlayers
