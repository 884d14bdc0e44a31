#include "layers/random/keyed_draws.h"

#include "core/aten_functions.h"
#include "core/below.h"
#include "core/callbacks.h"
#include "layers/random/seeded.h"
#include "layers/vmap/vmap.h"
#include "rules/random/random.h"
#include "values/batched.h"

namespace torchlayers {

bool Draws::run(const Operator& op, Args& args, const Layer& layer) {
  return callbacks.draw(op, args, layer.name(), [&] {
    at::Tensor key;
    {
      const Below below(layer, op);
      key = next_key();
    }
    return on(layer, std::move(key));
  });
}

at::Tensor Draws::next_key() {
  if (samples_ && !keys_of_samples_.defined()) {
    const at::Tensor places = at::arange(c10::Scalar(samples_->count), key_.options());
    keys_of_samples_ = fold_in(key_, places + samples_->first);
  }
  const at::Tensor& keys = samples_ ? keys_of_samples_ : key_;
  ++ever_made;
  return fold_in(keys, at::scalar_tensor(count++, keys.options()));
}

at::Tensor Draws::on(const Layer& layer, at::Tensor key) const {
  return samples_ ? batched(std::move(key), /*dim=*/0, layer) : key;
}

Draws* draws_of(Layer* layer) {
  if (auto* vmap = dynamic_cast<VmapLayer*>(layer)) {
    return vmap->draws();
  }
  auto* seeded = dynamic_cast<SeededLayer*>(layer);
  return seeded != nullptr ? seeded->draws() : nullptr;
}

} // namespace torchlayers
