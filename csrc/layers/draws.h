// What a layer draws by a key where an operator draws random numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

#include "core/layer.h"

namespace torchlayers {

// NOTE [Drawing by a key]
// The n-th random operator that arrives at the layer draws by the layer's key with n folded in,
// under vmap by that of each sample: the layer's with the sample's place in the batch folded in.
// So what a sample draws depends on the key, on its place, and on the draws before it, and not
// on the rest of the batch. The operator itself is not called. A function of its arguments and the
// key (torchlayers/random/aten_samplers.py) stands in for it on this layer, and an operator that
// has none is refused where it would draw.
class Draws {
 public:
  struct Samples {
    c10::SymInt count;
    int64_t first; // the place of the first in the whole batch
  };

  explicit Draws(at::Tensor key, std::optional<Samples> samples = std::nullopt)
      : key_(std::move(key)), samples_(std::move(samples)) {}

  // Of an operator that draws, which the layer is processing: its results by the key of this draw,
  // in the place of its arguments. False where with these arguments it draws nothing.
  bool run(const Operator& op, Args& args, const Layer& layer);

  // Of this draw: to be called below the layer, and to be taken to it.
  at::Tensor next_key();
  at::Tensor on(const Layer& layer, at::Tensor key) const;

  const at::Tensor& key() const {
    return key_;
  }
  bool of_samples() const {
    return samples_.has_value();
  }

  // How many draws there have been. Who runs a part of a program again sets it back.
  int64_t count = 0;

 private:
  // Of the layers below; the samples' are made at the first draw.
  at::Tensor key_;
  at::Tensor keys_of_samples_;
  std::optional<Samples> samples_;
};

// Null where the layer, or null, does not draw by a key.
Draws* draws_of(Layer* layer);

} // namespace torchlayers
