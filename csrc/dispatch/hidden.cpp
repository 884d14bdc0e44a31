#include "dispatch/hidden.h"

#include <algorithm>

#include "core/args.h"
#include "core/errors.h"
#include "core/hooks.h"
#include "core/keys.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

bool is_hidden(const Operator& op, size_t arg) {
  return std::find(op.hidden_args.begin(), op.hidden_args.end(), arg) != op.hidden_args.end();
}

// What the arguments hold.
struct Held {
  bool any_hidden = false;
  bool any_seen = false;
  bool any_followed = false;
  std::optional<size_t> hidden_and_followed; // the argument

  Held(const Operator& op, const Args& args, const Layer& layer) {
    for (size_t i = 0; i < op.num_args; ++i) {
      const bool hides = is_hidden(op, i);
      visit_tensors_of(args[args.size() - op.num_args + i], [&](const at::Tensor& tensor) {
        const bool is_followed = layer.follows(without_dead_wrappers(tensor));
        (hides ? any_hidden : any_seen) = true;
        any_followed = any_followed || is_followed;
        if (hides && is_followed) {
          hidden_and_followed = i;
        }
      });
    }
  }
};

bool has_batching_rule(const Operator& op, const Layer& layer) {
  return layer.batch_size() != nullptr &&
         op.handle.hasKernelForDispatchKey(DispatchKey::FuncTorchBatched);
}

constexpr const char* kOrMadeOfOthers =
    " Tensor or Tensor[], or register the operator's kernel as CompositeImplicitAutograd, of which "
    "every transform sees the parts.";

} // namespace

bool run_hidden(const Operator& op, c10::DispatchKeySet keys, Args* args, const Layer& layer) {
  const Held held(op, *args, layer);
  if (held.any_hidden && !has_batching_rule(op, layer) && (op.is_composite || !held.any_seen)) {
    op.handle.redispatchBoxed(keys & c10::autograd_dispatch_keyset, args);
    return true;
  }
  if (held.any_followed && op.is_collective && hooks.decompose(op, *args)) {
    return true;
  }
  if (held.hidden_and_followed && !has_batching_rule(op, layer)) {
    const c10::Argument& argument = op.schema().arguments()[*held.hidden_and_followed];
    raise_not_implemented(
        layer.name(),
        " can't run ",
        op.name(),
        ": its argument '",
        argument.name(),
        "' (",
        argument.type()->str(),
        ") holds tensors of this transform, and PyTorch's dispatcher does not look into it, so "
        "they "
        "would be taken for constants. Pass them as",
        kOrMadeOfOthers);
  }
  if (op.hides_results && held.any_followed && layer.is_autograd() && !op.is_composite) {
    raise_not_implemented(
        layer.name(),
        " can't differentiate ",
        op.name(),
        ": it returns tensors where autograd does not look for them, in a dict or nested list, and "
        "their derivatives would be lost. Return them as",
        kOrMadeOfOthers);
  }
  return false;
}

} // namespace torchlayers
