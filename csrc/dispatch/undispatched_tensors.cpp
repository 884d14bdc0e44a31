#include "dispatch/undispatched_tensors.h"

#include <algorithm>

#include "core/args.h"
#include "core/callbacks.h"
#include "core/errors.h"
#include "core/keys.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

bool has_batching_rule(const Operator& op, const Layer& layer) {
  return layer.batch_size() != nullptr &&
         op.handle.hasKernelForDispatchKey(DispatchKey::FuncTorchBatched);
}

constexpr const char* kOrMadeOfOthers =
    " Tensor or Tensor[], or register the operator's kernel as CompositeImplicitAutograd, which "
    "every transform can decompose.";

} // namespace

bool run_hidden(const Operator& op, c10::DispatchKeySet keys, Args* args, const Layer& layer) {
  bool any_hidden = false;
  bool any_seen = false;
  bool any_followed = false;
  std::optional<size_t> hidden_and_followed; // the argument
  visit_tensors(*args, op.num_args, [&](const at::Tensor& tensor, size_t i) {
    const bool is_hidden = std::ranges::find(op.hidden_args, i) != op.hidden_args.end();
    const bool is_followed = layer.follows(without_dead_wrappers(tensor));
    (is_hidden ? any_hidden : any_seen) = true;
    any_followed = any_followed || is_followed;
    if (is_hidden && is_followed) {
      hidden_and_followed = i;
    }
  });
  if (any_hidden && !has_batching_rule(op, layer) && (op.is_composite || !any_seen)) {
    op.handle.redispatchBoxed(keys & c10::autograd_dispatch_keyset, args);
    return true;
  }
  if (any_followed && op.is_collective && callbacks.decompose(op, *args)) {
    return true;
  }
  if (hidden_and_followed && !has_batching_rule(op, layer)) {
    const c10::Argument& argument = op.schema().arguments()[*hidden_and_followed];
    raise_not_implemented(
        "{} can't run {}: its argument '{}' ({}) holds tensors of this transform, and PyTorch's "
        "dispatcher does not look into it, so they would be treated as constants. Pass them as{}",
        layer.name(),
        op.name(),
        argument.name(),
        argument.type()->str(),
        kOrMadeOfOthers);
  }
  if (op.hides_results && any_followed && layer.is_autograd() && !op.is_composite) {
    raise_not_implemented(
        "{} can't differentiate {}: it returns tensors where autograd does not look for them, in a "
        "dict or nested list, and their derivatives would be lost. Return them as{}",
        layer.name(),
        op.name(),
        kOrMadeOfOthers);
  }
  return false;
}

} // namespace torchlayers
