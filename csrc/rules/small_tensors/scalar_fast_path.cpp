#include "rules/small_tensors/scalar_fast_path.h"

#include <ATen/EmptyTensor.h>
#include <ATen/functorch/BatchedTensorImpl.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "core/device.h"
#include "core/keys.h"
#include "core/skip_autograd.h"
#include "core/stack.h"
#include "core/trace/trace.h"
#include "rules/vjp_call.h"
#include "values/batched.h"
#include "values/local_storages.h"

namespace torchlayers {
namespace {

bool are_zero(at::IntArrayRef strides) {
  return std::all_of(strides.begin(), strides.end(), [](int64_t stride) { return stride == 0; });
}

bool are_contiguous(at::IntArrayRef sizes, at::IntArrayRef strides) {
  int64_t expected = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] != 1 && strides[i] != expected) {
      return false;
    }
    expected *= sizes[i];
  }
  return true;
}

// Below it, a double represents each integer.
constexpr double kFirstRounded = 9007199254740992; // 2^53

double number_of(const at::TensorImpl& value) {
  switch (value.dtype().toScalarType()) {
    case at::kFloat:
      return *static_cast<const float*>(value.data());
    case at::kDouble:
      return *static_cast<const double*>(value.data());
    default:
      return static_cast<double>(*static_cast<const int64_t*>(value.data()));
  }
}

} // namespace

OnePass::OnePass() {
  const auto included = thread_keys().included();
  is_open_ = !tracing && !is_any_mode_on(); // a captured graph shows the operators
  if (is_open_ && !included.has(kFront)) {
    is_open_ = !included.has_any(kTorchFuncKeys); // torch.func's levels wrap all results
  } else if (is_open_) {
    const Layer* layer = top_layer();
    is_open_ = layer != nullptr && layer->batch_size() != nullptr && layer->level() == 1 &&
               !is_bypassed(kTorchFuncFront);
    level_ = 1;
    local_storages_ = is_open_ ? layer->local_storages() : nullptr;
  }
}

OnePass::OnePass(PlainValues) : is_open_(!tracing && !is_any_mode_on()) {}

bool OnePass::read(size_t place, double number) {
  if (place >= kMostOperands) {
    return false;
  }
  operands_[place].number = number;
  count_ = std::max(count_, place + 1);
  return true;
}

bool OnePass::read(size_t place, const at::Tensor& tensor) {
  if (!is_open_ || place >= kMostOperands || !tensor.defined()) {
    return false;
  }
  count_ = std::max(count_, place + 1);
  Operand& operand = operands_[place];
  const at::TensorImpl* value = tensor.unsafeGetTensorImpl();
  const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
  if (batched != nullptr) {
    value = batched->value().unsafeGetTensorImpl();
  }
  if (!is_plain(*value) || !is_in_host_memory(*value) ||
      (local_storages_ != nullptr && local_storages_->has_written(tensor))) {
    return false;
  }
  operand.sizes = value->sizes();
  operand.strides = value->strides();
  if (batched != nullptr) {
    const int64_t size = operand.sizes[0];
    if (batched->level() != level_ || batched->bdim() != 0 ||
        (batch_size_ >= 0 && batch_size_ != size)) {
      return false;
    }
    batch_size_ = size;
    operand.is_batched = true;
    operand.outer = operand.strides[0];
    operand.sizes = operand.sizes.slice(1);
    operand.strides = operand.strides.slice(1);
  }
  const auto dtype = value->dtype().toScalarType();
  const bool is_scalar = batched == nullptr && operand.sizes.empty();
  if (is_scalar && (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kLong)) {
    operand.number = number_of(*value);
    has_large_integer_ |= dtype == at::kLong && std::abs(operand.number) >= kFirstRounded;
  } else {
    operand.value = value;
    are_alike_ = are_alike_ && (!has_shape_ || operand.sizes == sizes_) && value->is_contiguous();
    sizes_ = operand.sizes.size() > sizes_.size() ? operand.sizes : sizes_;
    has_shape_ = true;
  }
  return count_towards_dtype(*value, operand);
}

bool OnePass::count_towards_dtype(const at::TensorImpl& value, const Operand& operand) {
  const auto dtype = value.dtype().toScalarType();
  if (dtype == at::kBool) {
    const bool is_only = !has_flags_; // there is room for one of them
    has_flags_ = true;
    return is_only && value.numel() <= kMostElements && value.is_contiguous();
  }
  if (dtype != at::kFloat && dtype != at::kDouble) {
    return operand.value == nullptr; // an integer takes the dtype of the others
  }
  if (value.is_wrapped_number()) {
    return true;
  }
  auto& known = operand.value == nullptr ? dtype_of_scalars_ : dtype_;
  const bool agrees = known.value_or(dtype) == dtype;
  known = dtype;
  return agrees;
}

bool OnePass::read_line(const at::Tensor& t, const Operands& call, const Reads& reads) {
  if (!read(0, t) || (reads.results[0] && !read(1, call.result()))) {
    return false;
  }
  for (size_t i = 0; i < call.op().num_args; ++i) {
    const c10::IValue& arg = call.arg(i);
    const bool is_read = arg.isTensor()   ? !reads.args[i] || read(2 + i, arg.toTensor())
                         : arg.isDouble() ? read(2 + i, arg.toDouble())
                         : arg.isInt()    ? read(2 + i, static_cast<double>(arg.toInt()))
                                          : !arg.isScalar(); // complex, symbolic
    if (!is_read) {
      return false;
    }
  }
  return true;
}

bool OnePass::line_up() {
  if (!dtype_) {
    dtype_ = dtype_of_scalars_;
  } else if (sizes_.empty() && dtype_of_scalars_ && *dtype_of_scalars_ != *dtype_) {
    return false; // scalars decide the dtype where nothing has dimensions
  }
  inner_ = c10::multiply_integers(sizes_);
  outer_ = batch_size_ < 0 ? 1 : batch_size_;
  const int64_t total = inner_ * outer_;
  if (!dtype_ || total == 0 || total > kMostElements) {
    return false;
  }
  if (!are_alike_) {
    return line_up_unlike();
  }
  for (Operand& operand : std::span(operands_.data(), count_)) {
    operand.inner = operand.sizes.empty() ? 0 : 1;
  }
  return true;
}

bool OnePass::line_up_unlike() {
  if (batch_size_ < 0) { // the inner loop is over the shortest operand
    const int64_t numel = inner_;
    for (const Operand& operand : operands_) {
      const int64_t length = c10::multiply_integers(operand.sizes);
      inner_ = length == 1 ? inner_ : std::min(inner_, length);
    }
    if (inner_ == 0) {
      return false; // an operand of one element broadcasts to none
    }
    outer_ = numel / inner_;
  }
  return std::all_of(operands_.begin(), operands_.end(), [this](Operand& operand) {
    return operand.sizes.empty() || set_steps(operand);
  });
}

// The operand must have the result's sizes, or one element, or, where nothing is batched, the last
// of the sizes.
bool OnePass::set_steps(Operand& operand) const {
  const bool is_whole = operand.sizes == sizes_;
  const int64_t length = c10::multiply_integers(operand.sizes);
  const bool is_end = batch_size_ < 0 && length == inner_ &&
                      operand.sizes == sizes_.slice(sizes_.size() - operand.sizes.size());
  if (!is_whole && length == 1) {
    return true;
  }
  if (!is_whole && !is_end) {
    return false;
  }
  if (are_contiguous(operand.sizes, operand.strides)) {
    operand.inner = 1;
    if (is_whole && !operand.is_batched && batch_size_ < 0) {
      operand.outer = inner_;
    }
    return true;
  }
  return are_zero(operand.strides); // expanded
}

at::Tensor OnePass::make_result(at::IntArrayRef sizes) const {
  if (batch_size_ < 0) {
    return at::detail::empty_cpu(sizes, *dtype_);
  }
  c10::SmallVector<int64_t, 5> all{batch_size_};
  all.append(sizes.begin(), sizes.end());
  return at::detail::empty_cpu(all, *dtype_);
}

at::Tensor OnePass::as_batched(at::Tensor result) const {
  if (batch_size_ < 0) {
    return result;
  }
  return batched(std::move(result), /*dim=*/0, *top_layer());
}

} // namespace torchlayers
