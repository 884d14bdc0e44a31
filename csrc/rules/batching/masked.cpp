#include "masked.h"

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/ops/where.h>

#include <optional>

namespace torchlayers {
namespace {

// The mask, if it is the only index, and batched at this level.
std::optional<at::Tensor> mask_of(const c10::IValue& indices, int64_t level) {
  std::optional<at::Tensor> mask;
  const auto list = indices.toListRef();
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].isNone()) {
      continue;
    }
    if (i != 0) {
      return std::nullopt;
    }
    mask = list[i].toTensor();
  }
  const auto* batched = mask ? at::functorch::maybeGetBatchedImpl(*mask) : nullptr;
  const bool is_mask =
      batched != nullptr && batched->level() == level && mask->scalar_type() == at::kBool;
  return is_mask ? mask : std::nullopt;
}

} // namespace

bool fill_by_mask(const Operator& op, Args& args, const VmapLayer& layer) {
  if (!op.writes_by_index) {
    return false;
  }
  const auto* given = &args[args.size() - op.num_args];
  const at::Tensor self = given[0].toTensor();
  const at::Tensor value = given[2].toTensor();
  auto mask = mask_of(given[1], layer.level());
  const bool accumulates = given[3].toBool();
  if (!mask || mask->dim() > self.dim() || value.dim() != 0 || accumulates) {
    return false;
  }
  while (mask->dim() < self.dim()) {
    mask = mask->unsqueeze(-1);
  }
  // masked_fill would say it, and has no batching rule for a tensor as its value.
  at::Tensor written = at::where(*mask, value, self);
  if (op.is_in_place) {
    written = self.copy_(written);
  }
  args.resize(args.size() - op.num_args);
  args.emplace_back(std::move(written));
  return true;
}

} // namespace torchlayers
