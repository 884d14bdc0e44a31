// Visiting the tensors among an operator's arguments or results.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstddef>

namespace torchlayers {

// Replaces every tensor of the last `count` values on the stack, the members of
// tensor lists and optional tensor lists among them, by `change(tensor, i)`, where
// i is the place of the value among those. A list is copied before it is changed:
// somebody else may hold it. Undefined tensors are passed over.
template <class Change>
void change_tensors(torch::jit::Stack& values, size_t count, const Change& change) {
  const size_t first = values.size() - count;
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& value = values[first + i];
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
      for (size_t j = 0; j < before.size(); ++j) {
        if (!before[j].isTensor() || !before[j].toTensor().defined()) {
          continue;
        }
        if (!after) {
          after = value.toList().copy();
        }
        after->set(j, change(before[j].toTensor(), i));
      }
      if (after) {
        value = std::move(*after);
      }
    }
  }
}

// Calls `visit(tensor)` on the same tensors.
template <class Visit>
void visit_tensors(const torch::jit::Stack& values, size_t count, const Visit& visit) {
  for (size_t i = values.size() - count; i < values.size(); ++i) {
    const c10::IValue& value = values[i];
    if (value.isTensor()) {
      if (value.toTensor().defined()) {
        visit(value.toTensor());
      }
    } else if (value.isList()) {
      for (const c10::IValue& member : value.toListRef()) {
        if (member.isTensor() && member.toTensor().defined()) {
          visit(member.toTensor());
        }
      }
    }
  }
}

} // namespace torchlayers
