// Operators that join tensors.

#include "core/aten_functions.h"
#include "rules/batching/families.h"

namespace torchlayers {
namespace {

// op(tensors, dim), whose result has `more` additional dimensions.
bool joined(BatchedCall& call, size_t more) {
  if (!call[0].isTensorList() || !call[1].isInt()) {
    return false;
  }
  const auto parts = call[0].toListRef();
  if (parts.empty()) {
    return false;
  }
  const at::Tensor& first = parts[0].toTensor();
  bool any_batched = false;
  for (const c10::IValue& each : parts) {
    const at::Tensor& part = each.toTensor();
    const bool fits = part.dim() == first.dim() && part.layout() == at::kStrided &&
                      part.scalar_type() == first.scalar_type();
    if (!fits) {
      return false;
    }
    any_batched = any_batched || call.is_batched(part);
  }
  if (!any_batched) {
    return false;
  }
  const auto dim = BatchedCall::physical(call[1].toInt(), first.dim() + static_cast<int64_t>(more));
  if (!dim) {
    return false;
  }
  return call.give([&] {
    std::vector<at::Tensor> values;
    values.reserve(parts.size());
    for (const c10::IValue& part : parts) {
      values.push_back(call.expanded(part.toTensor()));
    }
    return more == 0 ? at::cat(values, *dim) : at::stack(values, *dim);
  });
}

} // namespace

void add_batched_tensor_lists(BatchingTable& rules) {
  rules.add({"cat"}, {joined, 0});
  rules.add({"stack"}, {joined, 1});
}

} // namespace torchlayers
