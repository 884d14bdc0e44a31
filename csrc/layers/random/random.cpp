#include "layers/random/random.h"

#include "core/args.h"
#include "core/skip_autograd.h"
#include "core/trace/trace.h"
#include "values/wrapper.h"

namespace torchlayers {

// torch.func has no such transform: for it this is a vmap that has batched nothing.
at::functorch::DynamicLayer RandomLayer::mirrored(int64_t level) const {
  return at::functorch::DynamicLayer(
      at::functorch::TransformType::Vmap,
      level,
      c10::SymInt(1),
      at::functorch::RandomnessType::Error);
}

void RandomLayer::process(const Operator& op, Args& args) {
  unwrap_dead_and_check(op, args, *this);
  if (!op.is_random || !draw(op, args)) {
    send_down(op, args);
  }
}

void RandomLayer::send_down(const Operator& op, Args& args) {
  trace("send_down", op, *this);
  const auto is_not_plain = [](const at::Tensor& value) { return !is_plain(value); };
  call_below(op, args, !any_tensor(args, op.num_args, is_not_plain));
}

} // namespace torchlayers
