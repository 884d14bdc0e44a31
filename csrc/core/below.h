// Going below a layer: the one way.
#pragma once

#include <optional>
#include <vector>

#include "core/layer.h"
#include "core/stack.h"

namespace torchlayers {

// While it lives, the layer, which is on top, is off the stack; the thread's keys are those that
// its front found, and the modes are those for the layers below.
class Below {
 public:
  // For an operator that the layer is processing.
  Below(const Layer& layer, const Operator& op);
  // Between operators, in modes that hold here: for a reverse pass, or a Function's forward.
  Below(Layer& layer, Modes here);
  ~Below();
  Below(const Below&) = delete;
  Below& operator=(const Below&) = delete;

  // Lets what is called from here on skip autograd, if nobody records `op`, which is called with
  // values that are plain or not. NOTE [Skipping autograd].
  void skip_autograd(const Operator& op, bool are_plain);

 private:
  // Takes the layer on top off the stack.
  explicit Below(std::vector<at::functorch::DynamicLayer>& stack);
  void set_keys(const Processing& processing);
  void set_modes(const Layer& layer, Modes here);

  std::optional<Processing> processing_;
  at::functorch::DynamicLayer entry_;
  size_t depth_; // below
  c10::impl::PODLocalDispatchKeySet keys_inside_;
  std::optional<Modes> modes_inside_; // of a layer of autograd's
};

} // namespace torchlayers
