// How a tangent lies in memory: as torch's forward AD needs it to view it as its primal.
#include <ATen/EmptyTensor.h>

#include <cstring>

#include "core/aten_functions.h"
#include "core/device.h"
#include "core/skip_autograd.h"
#include "values/batched.h"
#include "values/tangent.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

bool has_symbolic_layout(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() ||
         holder_of(tensor).unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

// The copy below, made without operators; undefined if operators would be visible.
at::Tensor copied_at_once(const at::Tensor& tangent, const at::Tensor& primal) {
  const bool may_be = nothing_is_below() && is_plain(tangent) && is_plain(primal) &&
                      is_in_host_memory(*tangent.unsafeGetTensorImpl()) &&
                      tangent.dtype() == primal.dtype() && tangent.sizes() == primal.sizes() &&
                      tangent.is_contiguous() && primal.is_contiguous() && primal.numel() > 0;
  if (!may_be) {
    return {};
  }
  const int64_t offset = primal.storage_offset();
  const auto length = static_cast<int64_t>(primal.storage().nbytes() / primal.itemsize());
  at::Tensor copy = at::detail::empty_cpu({length}, primal.scalar_type());
  auto* memory = static_cast<char*>(copy.mutable_data_ptr());
  std::memset(memory, 0, copy.nbytes());
  std::memcpy(
      memory + static_cast<size_t>(offset) * primal.itemsize(),
      tangent.const_data_ptr(),
      tangent.nbytes());
  copy.unsafeGetTensorImpl()->set_sizes_and_strides(primal.sizes(), primal.strides(), offset);
  return copy;
}

// The most common case, checked first.
bool are_whole_and_alike(const at::Tensor& tangent, const at::Tensor& primal) {
  return is_plain(tangent) && is_plain(primal) && tangent.dtype() == primal.dtype() &&
         tangent.sizes() == primal.sizes() && tangent.is_contiguous() && primal.is_contiguous() &&
         tangent.storage_offset() == 0 && primal.storage_offset() == 0 &&
         tangent.storage().nbytes() == primal.storage().nbytes();
}

bool has_memory_like(const at::Tensor& tensor, const at::Tensor& other) {
  return !tensor.has_storage() || !other.has_storage() ||
         tensor.storage().sym_nbytes() / tensor.itemsize() ==
             other.storage().sym_nbytes() / other.itemsize();
}

// Whether it has the conjugate bit of its primal. A real tangent has no conjugate.
bool is_to_be_conj(const at::Tensor& tangent, const at::Tensor& primal) {
  return primal.is_conj() && tangent.is_complex();
}

// Whether it has the negative bit of its primal. torch.func's vmap has no rule for views with it.
bool is_to_be_neg(const at::Tensor& primal) {
  return primal.is_neg() && !batched_by_torch_func().defined();
}

at::Tensor copied(const at::Tensor& tangent, const at::Tensor& primal) {
  const bool has_symbols = has_symbolic_layout(tangent) || has_symbolic_layout(primal);
  if (tangent.scalar_type() == primal.scalar_type() && !has_symbols) {
    return at::_new_zeros_with_same_feature_meta(tangent, primal).copy_(tangent);
  }
  // Each sample with a primal has its own tangent. torch's batched new_empty_strided needs sizes
  // that are not symbolic.
  const bool is_wide = (batched_levels(primal) & ~batched_levels(tangent)).none();
  const at::Tensor copy = is_wide ? tangent.clone(at::MemoryFormat::Contiguous)
                                  : tangent + at::zeros_like(primal, tangent.scalar_type());
  return copy.sym_strides() == primal.sym_strides()
             ? copy
             : copy.new_empty_strided_symint(primal.sym_sizes(), primal.sym_strides()).copy_(copy);
}

} // namespace

bool is_laid_out_like(const at::Tensor& tangent, const at::Tensor& primal) {
  if (are_whole_and_alike(tangent, primal)) {
    return true;
  }
  if (tangent.layout() != at::kStrided || primal.layout() != at::kStrided) {
    return true;
  }
  if (tangent.is_conj() != is_to_be_conj(tangent, primal) ||
      tangent.is_neg() != is_to_be_neg(primal) || tangent.sym_strides() != primal.sym_strides()) {
    return false;
  }
  // Several tangents of one primal take more memory, and each has the primal's layout. But one
  // tangent of several primals has no room for what is written to them.
  const auto of_tangent = batched_levels(tangent);
  const auto of_primal = batched_levels(primal);
  if ((of_primal & ~of_tangent).any()) {
    return false;
  }
  return has_symbolic_layout(tangent) || has_symbolic_layout(primal) || of_tangent != of_primal ||
         (tangent.storage_offset() == primal.storage_offset() &&
          has_memory_like(holder_of(tangent), holder_of(primal)));
}

bool starts_elsewhere(const at::Tensor& tangent, const at::Tensor& primal) {
  return !has_symbolic_layout(tangent) && !has_symbolic_layout(primal) &&
         tangent.storage_offset() != primal.storage_offset();
}

at::Tensor copy_like(const at::Tensor& tangent, const at::Tensor& primal) {
  if (at::Tensor copy = copied_at_once(tangent, primal); copy.defined()) {
    return copy;
  }
  // A view of a dual tensor is taken of its tangent as well: view_as_real needs one without the
  // conjugate bit, and imag takes different views with it. So the copy has the primal's bits.
  const bool is_conj = is_to_be_conj(tangent, primal);
  const bool is_neg = is_to_be_neg(primal);
  at::Tensor copy = is_conj ? at::_conj(tangent) : tangent;
  copy = copied(is_neg ? at::_neg_view(copy) : copy, primal);
  copy = is_neg ? at::_neg_view(copy) : copy;
  return is_conj ? at::_conj(copy) : copy;
}

} // namespace torchlayers
