// Values that are batched alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/layer.h"

namespace torchlayers {

// NOTE [Batched alike]
// Where every batched argument has its batch in front and as many dimensions as any
// other argument has, broadcasting lines the values up as it would each sample's: the
// operator is simply called on them, without a batching rule. (2, 3) batched and (3)
// not are (B, 2, 3) and (3). But (3) batched and (2, 3) not would be (B, 3) and (2, 3):
// those are lined up first, (B, 1, 3) and (2, 3), and so are batches that are elsewhere
// than in front. And where a kernel does not broadcast, all is expanded to one shape.
// Samples without dimensions are tensors with one here, and count for more in type
// promotion; so they are taken only where there is nothing to promote. torch's rules
// have a way for the others.
class Alike {
 public:
  explicit Alike(const Layer& layer) : layer_(layer) {}

  void look_at(const at::Tensor& tensor);
  void look_at(const at::Scalar&) {}

  bool any_batched() const {
    return batched_rank_ >= 0;
  }
  // Enough where nothing is promoted.
  bool is_lined_up() const {
    return fits_ && batched_rank_ >= 0 && batched_rank_ == highest_rank_;
  }
  bool holds() const {
    return is_lined_up() && !(highest_rank_ == 0 && mixes_dtypes_);
  }

  // What the operator is called with below.
  const at::Tensor& value(const at::Tensor& tensor) const;
  const at::Scalar& value(const at::Scalar& scalar) const {
    return scalar;
  }
  at::Tensor batched(const at::Tensor& result) const;
  // The arguments as they were, of those that the operator was called with below.
  void put_back(Args& args, size_t count) const;

 private:
  const Layer& layer_;
  int64_t batched_rank_ = -1; // none yet
  int64_t highest_rank_ = 0;
  std::optional<at::ScalarType> dtype_;
  bool mixes_dtypes_ = false;
  bool fits_ = true;
};

} // namespace torchlayers
