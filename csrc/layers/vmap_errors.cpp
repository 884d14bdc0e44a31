#include "vmap_errors.h"

#include <string_view>

#include "../args.h"
#include "../errors.h"
#include "../wrapper.h"

namespace torchlayers {
namespace {

bool says(const c10::Error& error, std::string_view words) {
  return error.msg().find(words) != std::string::npos;
}

} // namespace

bool writes_unbatched(const Operator& op, const Args& args, const VmapLayer& layer) {
  if (!op.is_in_place) {
    return false;
  }
  const at::Tensor& target = args[args.size() - op.num_args].toTensor();
  const auto* batched = target.defined() ? at::functorch::maybeGetBatchedImpl(target) : nullptr;
  return !batched || batched->level() != layer.level();
}

void explain(
    const c10::Error& error, const Operator& op, const VmapLayer& layer, bool writes_unbatched) {
  if (says(error, "torchlayers: ")) {
    return;
  }
  if (says(error, "randomness error mode")) {
    raise(
        layer.name(),
        " called the random operator ",
        op.name(),
        " with randomness='error'. Give vmap randomness='different', for numbers of its own for "
        "each sample, or 'same'.");
  }
  if (says(error, "inplace randomness on an unbatched tensor")) {
    raise(
        layer.name(),
        " can't fill a tensor that is not batched with random numbers that differ between samples "
        "(",
        op.name(),
        "). Make the tensor from the sample (x.new_empty, torch.empty_like), or give vmap "
        "randomness='same'.");
  }
  if (op.is_custom && says(error, "Batching rule not implemented")) {
    raise(
        layer.name(),
        " can't run ",
        op.name(),
        ": it has no batching rule, and can't be called sample by sample. Give it a rule with "
        "torch.library.register_vmap, or register its kernel as CompositeImplicitAutograd.");
  }
  if (says(error, "dynamic shape") || says(error, "vmap over `mask` in torch.masked_select")) {
    raise(
        layer.name(),
        " can't run ",
        op.name(),
        ": each sample's result would have a size of its own. Use torch.where(mask, x, 0), or do "
        "it "
        "outside vmap.");
  }
  if (writes_unbatched && (says(error, "is not possible because there exists a Tensor") ||
                           says(error, "doesn't match the broadcast shape"))) {
    raise(
        layer.name(),
        " can't write a batched value into a tensor that is not batched (",
        op.name(),
        "): it has room for one sample, not for ",
        layer.batch_size(),
        ". Make it from the sample (torch.zeros_like(x), x.new_zeros), or use the out-of-place "
        "operator.");
  }
}

void refuse_to_read_number(const Operator& op, const Args& args, const VmapLayer& layer) {
  visit_tensors(args, op.num_args, [&](const at::Tensor& tensor) {
    const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
    if (batched && batched->level() == layer.level()) {
      raise(
          layer.name(),
          " can't make one Python number (item(), bool(), if, while) of a batched tensor: it "
          "holds ",
          layer.batch_size(),
          " values. Use torch.where or torch.stack, or return the value and look at it after "
          "vmap.");
    }
  });
}

} // namespace torchlayers
