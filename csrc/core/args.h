// Visiting the tensors among an operator's arguments or results.
#pragma once

#include <c10/util/FunctionRef.h>

#include <optional>
#include <type_traits>

#include "core/operator.h"

namespace torchlayers {

// Whether a value may hold others: a list, a dict or a tuple.
inline bool is_container(const c10::IValue& value) {
  return !value.isInt() && (value.isList() || value.isGenericDict() || value.isTuple());
}

// Calls `visit` on the tensors in a container, including those in nested containers and dict keys.
void visit_held(const c10::IValue& container, c10::function_ref<void(const at::Tensor&)> visit);
// A copy of the container with each tensor replaced by `change(tensor)`; nullopt if it has none.
std::optional<c10::IValue> changed_held(
    const c10::IValue& container, c10::function_ref<at::Tensor(const at::Tensor&)> change);

// Calls `visit(tensor)` on the tensors in one value. Undefined tensors are skipped.
template <class Visit>
void visit_tensors_of(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      visit(value.toTensor());
    }
  } else if (is_container(value)) {
    visit_held(value, visit);
  }
}

// The same for the last `count` values on the stack. `visit` may also take the index of the value
// among them: visit(tensor, i).
template <class Visit>
void visit_tensors(const Args& values, size_t count, const Visit& visit) {
  for (size_t i = 0; i < count; ++i) {
    visit_tensors_of(peek(values, i, count), [&](const at::Tensor& tensor) {
      if constexpr (std::is_invocable_v<Visit, const at::Tensor&, size_t>) {
        visit(tensor, i);
      } else {
        visit(tensor);
      }
    });
  }
}

template <class Test>
bool any_tensor(const Args& values, size_t count, const Test& test) {
  bool any = false;
  visit_tensors(values, count, [&](const at::Tensor& tensor) { any = any || test(tensor); });
  return any;
}

// Replaces each tensor in the last `count` values by `change(tensor, i)`.
template <class Change>
void change_tensors(Args& values, size_t count, const Change& change) {
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& value = peek(values, i, count);
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (tensor.defined()) {
        at::Tensor changed = change(tensor, i);
        if (!changed.is_same(tensor)) {
          value = std::move(changed);
        }
      }
    } else if (is_container(value)) {
      const auto change_here = [&](const at::Tensor& tensor) -> at::Tensor {
        return change(tensor, i);
      };
      if (auto changed = changed_held(value, change_here)) {
        value = std::move(*changed);
      }
    }
  }
}

} // namespace torchlayers
