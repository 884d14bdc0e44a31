// Operators that put tensors together.
#include <ATen/ATen.h>

#include "families.h"

namespace torchlayers {
namespace {

// op(tensors, dim); `more` dimensions come of it.
bool joined(BatchedCall& call, size_t more) {
  if (!call[0].isTensorList() || !call[1].isInt()) {
    return false;
  }
  const std::vector<at::Tensor> parts = call[0].toTensorVector();
  bool any_batched = false;
  for (const at::Tensor& part : parts) {
    const bool fits = part.dim() == parts[0].dim() && part.layout() == at::kStrided &&
                      part.scalar_type() == parts[0].scalar_type();
    if (!fits) {
      return false;
    }
    any_batched = any_batched || call.is_batched(part);
  }
  if (!any_batched) {
    return false;
  }
  const auto dim =
      BatchedCall::behind_batch(call[1].toInt(), parts[0].dim() + static_cast<int64_t>(more));
  if (!dim) {
    return false;
  }
  return call.give([&] {
    std::vector<at::Tensor> values;
    values.reserve(parts.size());
    for (const at::Tensor& part : parts) {
      values.push_back(call.expanded(part));
    }
    return call.call({c10::IValue(std::move(values)), *dim});
  });
}

} // namespace

void add_batched_lists(BatchTable& rules) {
  rules.add({"cat"}, {joined, 0});
  rules.add({"stack"}, {joined, 1});
}

} // namespace torchlayers
