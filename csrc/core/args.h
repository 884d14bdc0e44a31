// Visiting the tensors among an operator's arguments or results.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include <cstddef>

namespace torchlayers {

// Whether a value may hold others: a list, a dict or a tuple.
inline bool is_container(const c10::IValue& value) {
  return !value.isInt() && (value.isList() || value.isGenericDict() || value.isTuple());
}

// The tensors that a container holds, those of the containers in it and a dict's keys among
// them. The way for what is more than a list of tensors.
void visit_held(const c10::IValue& container, c10::function_ref<void(const at::Tensor&)> visit);
// A copy with changed tensors; the container itself where it holds none.
c10::IValue change_held(
    const c10::IValue& container, c10::function_ref<at::Tensor(const at::Tensor&)> change);

// Calls `visit(tensor)` on the tensors of one value. Undefined tensors are passed over.
template <class Visit>
void visit_tensors_of(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      visit(value.toTensor());
    }
  } else if (value.isList()) {
    for (const c10::IValue& member : value.toListRef()) {
      if (member.isTensor()) {
        if (member.toTensor().defined()) {
          visit(member.toTensor());
        }
      } else if (is_container(member)) {
        visit_held(member, visit);
      }
    }
  } else if (is_container(value)) {
    visit_held(value, visit);
  }
}

// The same on the last `count` values on the stack.
template <class Visit>
void visit_tensors(const torch::jit::Stack& values, size_t count, const Visit& visit) {
  for (size_t i = values.size() - count; i < values.size(); ++i) {
    visit_tensors_of(values[i], visit);
  }
}

// Replaces each of these tensors by `change(tensor, i)`, where i is the place of the value among
// the last `count`. A container is copied before it is changed: somebody else may hold it.
template <class Change>
void change_tensors(torch::jit::Stack& values, size_t count, const Change& change) {
  const size_t first = values.size() - count;
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& value = values[first + i];
    const auto change_here = [&](const at::Tensor& tensor) -> at::Tensor {
      return change(tensor, i);
    };
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (tensor.defined()) {
        at::Tensor changed = change(tensor, i);
        if (!changed.is_same(tensor)) {
          value = std::move(changed);
        }
      }
    } else if (value.isList()) {
      const auto before = value.toListRef();
      std::optional<c10::List<c10::IValue>> after;
      const auto replace = [&](size_t j, c10::IValue changed) {
        if (!after) {
          after = value.toList().copy();
        }
        after->set(j, std::move(changed));
      };
      for (size_t j = 0; j < before.size(); ++j) {
        if (before[j].isTensor()) {
          if (before[j].toTensor().defined()) {
            replace(j, change(before[j].toTensor(), i));
          }
        } else if (is_container(before[j])) {
          replace(j, change_held(before[j], change_here));
        }
      }
      if (after) {
        value = std::move(*after);
      }
    } else if (is_container(value)) {
      value = change_held(value, change_here);
    }
  }
}

} // namespace torchlayers
