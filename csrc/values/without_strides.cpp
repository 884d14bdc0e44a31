#include "values/without_strides.h"

#include <ATen/functorch/BatchedTensorImpl.h>

#include "core/errors.h"
#include "values/value_inside.h"

namespace torchlayers {
namespace {

using at::functorch::TensorWrapper;
using c10::DispatchKey;
using c10::DispatchKeySet;

bool is_compressed(const at::Tensor& tensor) {
  return tensor.key_set().has(DispatchKey::SparseCsr);
}

// A tensor with nothing but the value's sizes, dtype and device.
at::Tensor strided_like(const at::Tensor& value) {
  at::Tensor like = at::detail::make_tensor<c10::TensorImpl>(
      DispatchKeySet(DispatchKey::CPU), value.dtype(), value.device());
  like.unsafeGetTensorImpl()->set_sizes_contiguous(value.sizes());
  return like;
}

// torch's constructor reads the strides of its value, so it is given another tensor first.
class CompressedWrapper final : public TensorWrapper {
 public:
  CompressedWrapper(
      DispatchKeySet keys,
      const at::Tensor& value,
      int64_t level,
      std::shared_ptr<bool> life,
      bool is_immutable)
      : TensorWrapper(keys, strided_like(value), level, life, is_immutable),
        layout_(value.layout()),
        level_(level),
        life_(std::move(life)) {
    value_inside(*this) = value;
  }

  c10::Layout layout_impl() const override {
    return layout_;
  }

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version, bool allow_metadata_change) const override {
    return copied(version, allow_metadata_change);
  }

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version, bool allow_metadata_change) const override {
    return copied(version, allow_metadata_change);
  }

 private:
  c10::intrusive_ptr<TensorImpl> copied(
      const c10::VariableVersion& version, bool allow_metadata_change) const {
    auto copy =
        c10::make_intrusive<CompressedWrapper>(key_set(), value(), level_, life_, is_immutable());
    copy->set_version_counter(version);
    copy->set_allow_tensor_metadata_change(allow_metadata_change);
    return copy;
  }

  c10::Layout layout_;
  int64_t level_;
  std::shared_ptr<bool> life_;
};

} // namespace

at::Tensor wrapper_around(
    const at::Tensor& value, const at::functorch::Interpreter& interpreter, bool is_immutable) {
  if (value.is_nested() && value.layout() == at::kStrided &&
      !value.key_set().has(DispatchKey::Python)) {
    raise(
        "grad and jvp (level {}) can't take a nested tensor of strided layout, which has no sizes. "
        "Pad it (to_padded_tensor), or loop over its unbind().",
        interpreter.level());
  }
  if (!is_compressed(value)) {
    return at::functorch::makeTensorWrapper(value, interpreter, is_immutable);
  }
  const DispatchKeySet keys = at::functorch::getKeysToPropagateToWrapper(value);
  return at::detail::make_tensor<CompressedWrapper>(
      keys.add(DispatchKey::FuncTorchGradWrapper),
      value,
      interpreter.level(),
      interpreter.is_alive_ptr(),
      is_immutable);
}

void refresh(TensorWrapper& wrapper) {
  const at::Tensor& value = wrapper.value();
  if (is_compressed(value)) {
    wrapper.set_sizes_contiguous(value.sizes());
  } else {
    wrapper.refreshMetadata();
  }
}

} // namespace torchlayers
