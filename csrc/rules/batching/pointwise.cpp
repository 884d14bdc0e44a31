#include "pointwise.h"

#include <ATen/functorch/BatchedTensorImpl.h>

#include <optional>

#include "../../args.h"
#include "../../stack.h"
#include "../../trace.h"

namespace torchlayers {
namespace {

// NOTE [Batched alike]
// Where every batched argument has its batch in front and as many dimensions as any
// other argument has, broadcasting lines the values up as it would each sample's: the
// operator is simply called on them, without a batching rule. (2, 3) batched and (3)
// not are (B, 2, 3) and (3). But (3) batched and (2, 3) not would be (B, 3) and (2, 3):
// for those torch's rule is asked.
// Samples without dimensions are tensors with one here, and count for more in type
// promotion; so they are taken only where there is nothing to promote.
struct Alike {
  std::optional<int64_t> batched_rank;
  int64_t highest_rank = 0;
  std::optional<at::ScalarType> dtype;
  bool mixes_dtypes = false;
  bool fits = true;

  void look_at(const at::Tensor& tensor, int64_t level) {
    const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
    if (batched != nullptr && batched->level() == level) {
      const at::Tensor& value = batched->value();
      const int64_t rank = tensor.dim();
      fits = fits && batched->bdim() == 0 && value.layout() == at::kStrided && !value.is_nested() &&
             batched_rank.value_or(rank) == rank;
      batched_rank = rank;
    }
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      return; // a Python number, which bends to any tensor
    }
    highest_rank = std::max(highest_rank, tensor.dim());
    mixes_dtypes = mixes_dtypes || dtype.value_or(tensor.scalar_type()) != tensor.scalar_type();
    dtype = tensor.scalar_type();
  }

  bool holds() const {
    return fits && batched_rank && *batched_rank == highest_rank &&
           !(highest_rank == 0 && mixes_dtypes);
  }
};

} // namespace

bool run_batched_alike(const Operator& op, Args& args, const VmapLayer& layer) {
  if (!op.is_pointwise) {
    return false;
  }
  Alike alike;
  visit_tensors(
      args, op.num_args, [&](const at::Tensor& tensor) { alike.look_at(tensor, layer.level()); });
  if (!alike.holds()) {
    return false;
  }
  trace("send_down", op, layer);
  change_tensors(args, op.num_args, [&](const at::Tensor& tensor, size_t) -> at::Tensor {
    const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
    return batched != nullptr && batched->level() == layer.level() ? batched->value() : tensor;
  });
  {
    WithoutTop below(layer);
    op.handle.callBoxed(&args);
  }
  change_tensors(args, op.num_returns, [&](const at::Tensor& result, size_t) {
    return at::functorch::makeBatched(result, /*bdim=*/0, layer.level());
  });
  return true;
}

} // namespace torchlayers
