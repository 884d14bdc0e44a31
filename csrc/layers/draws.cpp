#include "layers/draws.h"

#include <ATen/ATen.h>

#include "core/below.h"
#include "core/hooks.h"
#include "layers/seeded.h"
#include "layers/vmap.h"
#include "rules/random.h"
#include "values/batched.h"

namespace torchlayers {

bool Draws::run(const Operator& op, Args& args, const Layer& layer) {
  return hooks.draw(op, args, layer.name(), [&] { return next_key(op, layer); });
}

at::Tensor Draws::next_key(const Operator& op, const Layer& layer) {
  at::Tensor key;
  {
    const Below below(layer, op);
    if (samples_ && !keys_of_samples_.defined()) {
      const at::Tensor places =
          at::arange(c10::Scalar(samples_->count), at::TensorOptions(at::kLong)) + samples_->first;
      keys_of_samples_ = fold_in(key_, places.to(key_.device()));
    }
    const at::Tensor& keys = samples_ ? keys_of_samples_ : key_;
    key = fold_in(keys, at::scalar_tensor(count, keys.options()));
  }
  ++count;
  return samples_ ? batched(std::move(key), /*dim=*/0, layer) : key;
}

std::vector<Draws*> draws_on_stack() {
  std::vector<Draws*> all;
  for (Layer* layer : layers_on_stack()) {
    Draws* draws = nullptr;
    if (auto* vmap = dynamic_cast<VmapLayer*>(layer)) {
      draws = vmap->draws();
    } else if (auto* seeded = dynamic_cast<SeededLayer*>(layer)) {
      draws = seeded->draws();
    }
    if (draws != nullptr) {
      all.push_back(draws);
    }
  }
  return all;
}

} // namespace torchlayers
