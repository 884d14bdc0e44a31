// Where no rule of ours (rules/batching/) applies, torch's batching rules do the work; they read
// the batch size and the randomness from this layer's entry in the mirror.
#include "layers/vmap/vmap.h"

#include <algorithm>

#include "core/args.h"
#include "core/callbacks.h"
#include "core/errors.h"
#include "core/keys.h"
#include "core/skip_autograd.h"
#include "core/stack.h"
#include "core/trace/trace.h"
#include "layers/captured.h"
#include "layers/vmap/draws.h"
#include "layers/vmap/errors.h"
#include "layers/vmap/no_samples.h"
#include "layers/vmap/writes.h"
#include "rules/batching/batched_call.h"
#include "rules/batching/in_place.h"
#include "rules/batching/pointwise.h"
#include "rules/batching/products.h"
#include "values/batched.h"
#include "values/wrapper.h"

namespace torchlayers {

namespace {

bool apply_rule(BatchedCall& call) {
  static const BatchingRule of_pointwise{line_up};
  if (!call.is_strided()) {
    return multiply_by_sparse(call);
  }
  const Operator& op = call.op();
  const BatchingRule* rule = op.is_pointwise ? &of_pointwise : op.batching_rule.load();
  return rule != nullptr && (call.is_batch_size_known() || !rule->counts_samples) &&
         rule->apply(call, rule->arg);
}

// A batching rule registered for the operator also finds the batch among hidden tensors, for which
// the dispatcher would not call it. NOTE [Hidden tensors].
void call(const Operator& op, Args& args) {
  if (!op.hidden_args.empty() && op.handle.hasKernelForDispatchKey(DispatchKey::FuncTorchBatched)) {
    op.handle.redispatchBoxed(DispatchKeySet(DispatchKey::FuncTorchBatched), &args);
  } else {
    op.handle.callBoxed(&args);
  }
}

// Whether torch's loop over the samples can run it: no tensor lists among the arguments, no views,
// and only tensors as results.
bool may_be_looped(const Operator& op, const Args& args) {
  const auto& returns = op.schema().returns();
  const bool returns_tensors =
      std::all_of(returns.begin(), returns.end(), [](const c10::Argument& result) {
        return result.type()->kind() == c10::TypeKind::TensorType;
      });
  const auto given = last(args, op.num_args);
  const bool takes_lists = std::any_of(given.begin(), given.end(), [](const c10::IValue& value) {
    return value.isList() &&
           value.toList().elementType()->isSubtypeOf(*c10::OptionalType::ofTensor());
  });
  return !op.aliases && returns_tensors && !takes_lists;
}

// Whether an operator that can't be run otherwise has a kernel that calls operators, which then are
// run one by one; for a custom operator also a kernel for any backend.
bool is_to_be_looked_into(const Operator& op, const Args& args) {
  const bool is_made_of_others =
      op.is_composite ||
      (op.is_custom && op.schema().getNamespace() != "prims" &&
       op.handle.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd));
  return is_made_of_others && !op.handle.hasKernelForDispatchKey(DispatchKey::FuncTorchBatched) &&
         !may_be_looped(op, args);
}

// While the result lives, ranks that hold different samples of a DTensor draw different numbers.
std::shared_ptr<void> drawing_apart(const Operator& op, const Args& args) {
  std::shared_ptr<void> apart;
  visit_tensors(args, op.num_args, [&](const at::Tensor& tensor) {
    if (!apart && holder_of(tensor).key_set().has(DispatchKey::Python)) {
      apart = callbacks.draw_apart(tensor);
    }
  });
  return apart;
}

} // namespace

const char* randomness_name(Randomness randomness) {
  switch (randomness) {
    case Randomness::Error:
      return "error";
    case Randomness::Same:
      return "same";
    case Randomness::Different:
      return "different";
    case Randomness::Keyed:
      return "keyed";
  }
  return "?";
}

namespace {

// None of torch's own rules draws by a key; one that is reached all the same should raise an error.
at::functorch::RandomnessType known_to_torch(Randomness randomness) {
  switch (randomness) {
    case Randomness::Same:
      return at::functorch::RandomnessType::Same;
    case Randomness::Different:
      return at::functorch::RandomnessType::Different;
    default:
      return at::functorch::RandomnessType::Error;
  }
}

} // namespace

std::map<std::string, c10::IValue> VmapLayer::metadata() const {
  return {{"batch_size", batch_size_}, {"randomness", randomness_name(randomness_)}};
}

at::functorch::DynamicLayer VmapLayer::mirrored(int64_t level) const {
  return at::functorch::DynamicLayer(
      at::functorch::TransformType::Vmap, level, batch_size_, known_to_torch(randomness_));
}

void VmapLayer::switch_on() {
  functions_at_work += again_of_ != 0 ? 1 : 0;
}

void VmapLayer::switch_off() {
  functions_at_work -= again_of_ != 0 ? 1 : 0;
  made_.end();
  whose_ = nullptr;
}

void VmapLayer::process(const Operator& op, Args& args) {
  if (op.written_args.empty() && !made_.any_written()) {
    run(op, args);
  } else if (!write_out(op, args, *this)) {
    const Writes writes(op, args, *this); // NOTE [Made inside]
    run(op, args);
    writes.give_back(op, args);
  }
}

void VmapLayer::run(const Operator& op, Args& args) {
  BatchedCall call(op, args, *this);
  if (op.reads_number) {
    refuse_to_read_number(op, args, *this);
  }
  std::shared_ptr<void> apart;
  if (op.is_random) {
    if (draws_ && draws_->run(op, args, *this)) {
      return;
    }
    if (randomness_ == Randomness::Different) {
      apart = drawing_apart(op, args);
    }
  }
  Args given; // for an error: torch's rule may replace a sample by the batch
  try {
    if (run_batched_alike(call)) {
      return;
    }
    if (call.any_batched() && (op.is_in_place || has_rule_for(op))) {
      given = args;
    }
    const NotedResults noted(op, args, *this);
    apply(op, args, call);
    noted.note(args);
  } catch (const c10::Error& error) {
    say_again(error, op, given.empty() ? args : given, *this); // NOTE [An error under vmap]
    throw;
  } catch (const LayerError& error) {
    say_again(error, op, given.empty() ? args : given, *this);
    throw;
  }
}

void VmapLayer::apply(const Operator& op, Args& args, BatchedCall& batched_call) {
  const bool is_below = !batched_call.any_batched() && !op.is_random && !op.is_custom;
  if (is_below && op.hidden_args.empty()) {
    send_down(op, args);
    return;
  }
  if (run_on_no_samples(op, args, batched_call, *this) ||
      (op.is_random && draw(op, args, batched_call, *this)) || apply_rule(batched_call) ||
      write_functional(op, args, *this) || resize_samples(op, args, *this) ||
      fill_samples(op, args, *this) || detach_samples(op, args, *this)) {
    return;
  }
  if (is_to_be_looked_into(op, args)) {
    op.handle.redispatchBoxed(DispatchKeySet(), &args);
    return;
  }
  trace("torch", op, *this);
  allow_only(kVmapLayerKeys, /*include=*/DispatchKeySet(DispatchKey::FuncTorchVmapMode));
  call(op, args);
  change_tensors(args, op.num_returns, [&](const at::Tensor& result, size_t) {
    if (has_escaped(result, *this)) { // detected by its batch size
      raise_as(
          ErrorClass::BatchedOperator,
          "{} can't run {}: it uses more dimensions than a sample has, and would treat the batch "
          "dimension as one of them.",
          name(),
          op.name());
    }
    return adopted(result, *this);
  });
}

bool VmapLayer::follows(const at::Tensor& tensor) const {
  const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
  return batched != nullptr && batched->level() == level();
}

// torch.tensor([x[0], x[1]]) reads numbers of batched tensors past every layer.
void VmapLayer::bypassed(const Operator& op, const Args& args) const {
  if (op.reads_number) {
    refuse_to_read_number(op, args, *this);
  }
}

void VmapLayer::send_down(const Operator& op, Args& args) {
  trace("send_down", op, *this);
  const auto is_not_plain = [](const at::Tensor& value) { return !is_plain(value); };
  call_below(op, args, !any_tensor(args, op.num_args, is_not_plain));
}

} // namespace torchlayers
