#include "values/wrapper_chain.h"

#include <limits>

#include "core/stack.h"
#include "values/batched.h"
#include "values/functional.h"
#include "values/rewrap.h"
#include "values/tangent.h"
#include "values/without_strides.h"
#include "values/wrapper.h"

namespace torchlayers {

namespace {

constexpr int64_t kEnded = std::numeric_limits<int64_t>::max();

// Not if the layer has ended, or is in its reverse pass: what is inside is used in its place.
bool is_on_stack(int64_t level) {
  return level <= static_cast<int64_t>(mirror().size());
}

} // namespace

Shell::Shell(const at::Tensor& tensor, std::vector<at::Tensor>& numbers) {
  const auto add = [&](Kind kind, int64_t level, int64_t dim, const at::Tensor& tangent) {
    levels_.push_back(
        {kind,
         level,
         dim,
         tangent.defined() ? std::make_unique<Shell>(tangent, numbers) : nullptr});
  };
  at::Tensor rest = tensor;
  for (;;) {
    if (is_of_custom_layer(rest)) {
      add(Kind::Plain, 0, 0, {});
      numbers.push_back(rest);
      return;
    }
    if (const auto* wrapper = wrapper_of(rest)) {
      const int64_t level = wrapper->level().value_or(kEnded);
      if (is_on_stack(level)) {
        add(Kind::Wrapped, level, 0, tangent_of(rest, level));
      }
      rest = at::Tensor(wrapper->value());
    } else if (const auto* batched = at::functorch::maybeGetBatchedImpl(rest)) {
      add(Kind::Batched, batched->level(), batched->bdim(), {});
      rest = at::Tensor(batched->value());
    } else if (const auto* functional = functional_of(rest)) {
      if (is_on_stack(functional->level())) {
        add(Kind::Functional, functional->level(), 0, {});
      }
      rest = at::Tensor(functional->value());
    } else {
      const at::Tensor& tangent = rest._fw_grad(kDualLevel);
      add(Kind::Plain, 0, 0, tangent);
      numbers.push_back(rest.requires_grad() || tangent.defined() ? placed(rest, {}) : rest);
      return;
    }
  }
}

at::Tensor Shell::around(at::ArrayRef<at::Tensor> numbers) const {
  const at::Tensor* next = numbers.begin();
  return around(next);
}

at::Tensor Shell::around(const at::Tensor*& next) const {
  return around(next, 0);
}

at::Tensor Shell::around(const at::Tensor*& next, size_t i) const {
  const Level& level = levels_[i];
  at::Tensor tangent = level.tangent ? level.tangent->around(next) : at::Tensor();
  if (level.kind == Kind::Plain) {
    at::Tensor result = *next++;
    if (tangent.defined()) {
      result = placed(result, {});
      result._set_fw_grad(tangent, kDualLevel, /*is_inplace_op=*/false);
    }
    return result;
  }
  at::Tensor inner = around(next, i + 1);
  if (level.kind == Kind::Functional) {
    return made_functional(inner, level.level);
  }
  const auto& entry = mirror().at(static_cast<size_t>(level.level - 1));
  if (level.kind == Kind::Batched) {
    return batched_again(inner, level.dim, entry);
  }
  at::Tensor result = wrapper_around(inner, entry.interpreter());
  if (tangent.defined()) {
    give_tangent(result, std::move(tangent));
  }
  return result;
}

at::Tensor without_graphs(const at::Tensor& tensor) {
  std::vector<at::Tensor> numbers;
  const Shell shell(tensor, numbers);
  return shell.around(numbers);
}

const at::Tensor& value_at(const at::Tensor& tensor, int64_t level) {
  const auto* wrapper = wrapper_of(tensor);
  if (wrapper != nullptr && wrapper->level().value_or(level + 1) > level) {
    return value_at(wrapper->value(), level);
  }
  const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
  return batched != nullptr && batched->level() > level ? value_at(batched->value(), level)
                                                        : tensor;
}

void bump_versions(const at::Tensor& tensor) {
  if (!tensor.is_inference()) {
    tensor.unsafeGetTensorImpl()->bump_version();
  }
  if (const auto* wrapper = wrapper_of(tensor)) {
    bump_versions(wrapper->value());
  } else if (const auto* batched = at::functorch::maybeGetBatchedImpl(tensor)) {
    bump_versions(batched->value());
  }
}

} // namespace torchlayers
