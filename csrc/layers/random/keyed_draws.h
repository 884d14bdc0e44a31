// Draws by key, which replace the random operators of a layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

#include "core/layer.h"

namespace torchlayers {

// NOTE [Drawing by a key]
// The n-th random operator that reaches the layer draws by the layer's key with n folded in; under
// vmap, by the key of each sample: the layer's key with the sample's position in the batch folded
// in. So a sample's draws depend on the key, on its position, and on the draws before, but not on
// the rest of the batch. The operator itself is not called. A function of its arguments and the key
// (torchlayers/random/aten_samplers.py) replaces it on this layer; an operator that has none raises
// an error if it would draw.
class Draws {
 public:
  struct Samples {
    c10::SymInt count;
    int64_t first; // the position of the first in the whole batch
  };

  explicit Draws(at::Tensor key, std::optional<Samples> samples = std::nullopt)
      : key_(std::move(key)), samples_(std::move(samples)) {}

  // Replaces the arguments of a random operator that the layer is processing by its results, drawn
  // by the key of this draw. Returns false if it draws nothing with these arguments.
  bool run(const Operator& op, Args& args, const Layer& layer);

  // The key for this draw, called below the layer; and that key brought to the layer.
  at::Tensor next_key();
  at::Tensor on(const Layer& layer, at::Tensor key) const;

  const at::Tensor& key() const {
    return key_;
  }
  bool of_samples() const {
    return samples_.has_value();
  }

  // The number of draws so far. Code that runs a part of a program again sets it back.
  int64_t count = 0;
  int64_t ever_made = 0; // never set back

 private:
  // Values of the layers below; the samples' keys are made at the first draw.
  at::Tensor key_;
  at::Tensor keys_of_samples_;
  std::optional<Samples> samples_;
};

// Null if the layer is null or does not draw by a key.
Draws* draws_of(Layer* layer);

} // namespace torchlayers
