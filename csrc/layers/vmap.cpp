// vmap. Where no rule of ours (rules/) fits, torch's batching rules do the work; they
// read the batch size and the randomness from this layer's entry in the mirror.
#include "../keys.h"
#include "../layer.h"
#include "../rules/batching/batched_call.h"
#include "../rules/batching/in_place.h"
#include "../rules/batching/masked.h"
#include "../rules/batching/pointwise.h"
#include "../stack.h"
#include "../trace.h"
#include "../wrapper.h"
#include "vmap_errors.h"

namespace torchlayers {

namespace {

bool follow_rule(const Operator& op, Args& args, const VmapLayer& layer) {
  static const BatchRule of_pointwise{line_up};
  const BatchRule* rule = op.is_pointwise ? &of_pointwise : op.batch_rule.load();
  if (rule == nullptr) {
    return false;
  }
  BatchedCall call(op, args, layer);
  return call.is_plain() && rule->follow(call, rule->arg);
}

} // namespace

VmapLayer::VmapLayer(c10::SymInt batch_size, Randomness randomness)
    : Layer(Kind::Vmap), batch_size_(std::move(batch_size)), randomness_(randomness) {}

at::functorch::DynamicLayer VmapLayer::mirrored(int64_t level) const {
  return at::functorch::DynamicLayer(
      at::functorch::TransformType::Vmap, level, batch_size_, randomness_);
}

void VmapLayer::process(const Operator& op, Args& args) {
  unwrap_dead_and_check(op, args, *this);
  if (op.reads_number) {
    refuse_to_read_number(op, args, *this);
  }
  Args given; // for an error: torch's rule may put the batch in the place of a sample
  try {
    if (run_batched_alike(op, args, *this) || follow_rule(op, args, *this) ||
        fill_by_mask(op, args, *this) || write_functional(op, args, *this)) {
      return;
    }
    if (op.is_in_place || has_rule_for(op)) {
      given = args;
    }
    allow_only(kVmapLayerKeys, /*include=*/DispatchKeySet(DispatchKey::FuncTorchVmapMode));
    op.handle.callBoxed(&args);
  } catch (const c10::Error& error) {
    say_again(error, op, given.empty() ? args : given, *this); // NOTE [An error under vmap]
    throw;
  }
}

// torch.tensor([x[0], x[1]]) reads numbers of batched tensors past every layer.
void VmapLayer::bypassed(const Operator& op, const Args& args) const {
  if (op.reads_number) {
    refuse_to_read_number(op, args, *this);
  }
}

void VmapLayer::send_down(const Operator& op, Args& args) {
  trace("send_down", op, *this);
  WithoutTop below(*this);
  op.handle.callBoxed(&args);
}

} // namespace torchlayers
