#include "rules/jvp_call.h"

#include "core/args.h"
#include "core/aten_functions.h"
#include "core/skip_autograd.h"
#include "values/tangent.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

// A zero tensor has no memory, and is one expanded zero wherever an operator needs some: no tangent
// can have this layout.
bool is_zero_tensor(const at::Tensor& result) {
  return holder_of(result)._is_zerotensor();
}

size_t count_tensors(const c10::IValue& value) {
  size_t count = 0;
  visit_tensors_of(value, [&](const at::Tensor&) { ++count; });
  return count;
}

} // namespace

JvpCall::JvpCall(const Operator& op, Args& args, const Tangents& tangents)
    : Operands(op, args.data() + (args.size() - op.num_args)),
      stack_(args),
      first_(args.size() - op.num_args),
      tangents_(tangents) {
  size_t start = 0;
  for (size_t i = 0; i < op.num_args; ++i) {
    starts_.push_back(start);
    start += count_tensors(arg(i));
  }
  starts_.push_back(start);
}

bool JvpCall::has_tangents(size_t i) const {
  for (const at::Tensor& tangent : tangents(i)) {
    if (tangent.defined()) {
      return true;
    }
  }
  return false;
}

void JvpCall::run() {
  computed_.assign(args_, args_ + op_.num_args);
  if (in_place_ == nullptr) {
    op_.call(computed_);
  } else {
    computed_[0] = target_;
    in_place_->handle.callBoxed(&computed_);
  }
  results_ = computed_.data();
}

void JvpCall::write_to(const Operator& in_place, const at::Tensor& target) {
  in_place_ = &in_place;
  target_ = target;
}

void JvpCall::have_run(Args results) {
  computed_ = std::move(results);
  results_ = computed_.data();
}

void JvpCall::set_tangent(size_t result, at::Tensor tangent) {
  if (!tangent.defined()) {
    return;
  }
  size_t place = 0;
  for (size_t i = 0; i < result; ++i) {
    place += count_tensors(computed_[i]);
  }
  given_.emplace_back(place, std::move(tangent));
}

void JvpCall::set_tangents(size_t result, const std::vector<at::Tensor>& tangents) {
  size_t place = 0;
  for (size_t i = 0; i < result; ++i) {
    place += count_tensors(computed_[i]);
  }
  for (const at::Tensor& tangent : tangents) {
    if (tangent.defined()) {
      given_.emplace_back(place, tangent);
    }
    ++place;
  }
}

bool JvpCall::is_of_argument(const at::Tensor& tensor) const {
  for (const at::Tensor& tangent : tangents_) {
    if (tangent.is_same(tensor)) {
      return true;
    }
  }
  for (size_t i = 0; i < op_.num_args; ++i) {
    if (arg(i).isTensor() && arg(i).toTensor().is_same(tensor)) {
      return true;
    }
  }
  return false;
}

// Prepares a tangent for its result. In-place operators on a dual tensor, and views of it, are
// applied to its tangent as well: it must have the same strides, and be referenced by no other
// tensor.
at::Tensor JvpCall::fitted(at::Tensor tangent, const at::Tensor& result) {
  if (op_.aliases) {
    return tangent; // the same view as its primal
  }
  // If an argument without dimensions has a wider dtype, the terms by it may have it too. A complex
  // tangent of a real result is the user's, along a complex direction.
  if (tangent.scalar_type() != result.scalar_type() &&
      (result.is_complex() || !tangent.is_complex())) {
    tangent = tangent.to(result.scalar_type());
  }
  if (tangent.dim() == 0 && tangent.device() != result.device()) {
    // The tangent of a CPU scalar, which a kernel on another device takes by value: no
    // synchronization.
    tangent = at::full_like(result, -0.0) + tangent;
  }
  const bool is_own = !is_of_argument(tangent);
  const bool has_size = tangent.is_nested() || tangent.sym_sizes() == result.sym_sizes();
  if (has_size && is_laid_out_like(tangent, result)) {
    return is_own ? tangent : tangent.clone();
  }
  if (is_zero_tensor(result)) {
    gave_zero_tensors_ = true;
    return tangent.expand_as(result).clone(at::MemoryFormat::Contiguous);
  }
  return copy_like(tangent, result);
}

at::Tensor JvpCall::given(size_t result) const {
  for (const auto& [place, tangent] : given_) {
    if (place == result) {
      return tangent;
    }
  }
  return {};
}

Tangents JvpCall::finish() {
  Tangents fitting;
  visit_tensors(computed_, op_.num_returns, [&](const at::Tensor& result) {
    at::Tensor tangent = given(fitting.size());

    fitting.push_back(
        tangent.defined() && is_differentiable(result) ? fitted(std::move(tangent), result)
                                                       : at::Tensor());
  });
  if (gave_zero_tensors_) {
    change_tensors(computed_, op_.num_returns, [](const at::Tensor& result, size_t) {
      return is_zero_tensor(result) ? result.clone(at::MemoryFormat::Contiguous) : result;
    });
  }
  stack_.resize(first_);
  for (c10::IValue& value : computed_) {
    stack_.push_back(std::move(value));
  }
  return fitting;
}

} // namespace torchlayers
