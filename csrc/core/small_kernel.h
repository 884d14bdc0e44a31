// Kernels of ours in place of torch's, for operators on small tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>

namespace torchlayers {

// One operator's. NOTE [Small kernels].
class SmallKernel {
 public:
  virtual ~SmallKernel() = default;

  // The operator's result, given operands that no layer tracks; undefined where the operator has to
  // be called.
  virtual at::Tensor compute(const at::Tensor& x, const at::Tensor& y) const = 0;
  at::Tensor compute(const at::Tensor& x) const {
    return compute(x, at::Tensor());
  }
  // y is multiplied by alpha.
  at::Tensor compute(const at::Tensor& x, const at::Tensor& y, const at::Scalar& alpha) const {
    const bool is_one = !alpha.isSymbolic() && !alpha.isBoolean() && alpha.equal(1);
    return is_one ? compute(x, y) : at::Tensor();
  }

  // The same for the operator's arguments in a row.
  at::Tensor compute_boxed(at::ArrayRef<c10::IValue> args) const {
    switch (args.size()) {
      case 1:
        return compute(args[0].toTensor());
      case 2:
        return compute(args[0].toTensor(), args[1].toTensor());
      default:
        return compute(args[0].toTensor(), args[1].toTensor(), args[2].toScalar());
    }
  }
};

} // namespace torchlayers
