#include "layers/drawn_outside.h"

#include "core/args.h"
#include "core/below.h"
#include "core/recording.h"
#include "core/trace.h"
#include "values/wrapper.h"

namespace torchlayers {

// torch.func knows no such transform: to it this is a vmap that batched nothing.
at::functorch::DynamicLayer DrawnOutsideLayer::mirrored(int64_t level) const {
  return at::functorch::DynamicLayer(
      at::functorch::TransformType::Vmap,
      level,
      c10::SymInt(1),
      at::functorch::RandomnessType::Error);
}

void DrawnOutsideLayer::process(const Operator& op, Args& args) {
  unwrap_dead_and_check(op, args, *this);
  if (op.is_random) {
    const Below below(*this, op);
    if (draw_(op, args)) {
      return;
    }
  }
  send_down(op, args);
}

void DrawnOutsideLayer::send_down(const Operator& op, Args& args) {
  trace("send_down", op, *this);
  const auto is_not_plain = [](const at::Tensor& value) { return !is_plain(value); };
  call_below(op, args, !any_tensor(args, op.num_args, is_not_plain));
}

} // namespace torchlayers
