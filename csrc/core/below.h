// The guard that takes a layer off the stack while an operator runs on the layers below it.
#pragma once

#include <optional>
#include <vector>

#include "core/layer.h"
#include "core/stack.h"

namespace torchlayers {

// While it lives, the layer, which was on top, is off the stack; the thread has the dispatch keys
// that the layer's front kernel found, and the modes for the layers below.
class Below {
 public:
  // For an operator that the layer is processing.
  Below(const Layer& layer, const Operator& op);
  // Between operators, with the modes that hold at this layer: for a reverse pass, or a Function's
  // forward.
  Below(Layer& layer, Modes here);
  ~Below();
  Below(const Below&) = delete;
  Below& operator=(const Below&) = delete;

  // Lets operators called from here on skip autograd if it would record nothing for `op`.
  // `are_plain`: all arguments of `op` are plain values. NOTE [Skipping autograd].
  void skip_autograd(const Operator& op, bool are_plain);

 private:
  // Takes the layer on top off the stack.
  explicit Below(std::vector<at::functorch::DynamicLayer>& stack);
  void set_keys(const Processing& processing);

  std::optional<Processing> processing_;
  at::functorch::DynamicLayer entry_;
  size_t depth_; // of the stack below the layer
  c10::impl::PODLocalDispatchKeySet keys_inside_;
  std::optional<Modes> modes_inside_; // only for an autograd layer
};

} // namespace torchlayers
