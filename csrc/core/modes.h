// Thread modes that a transform switches.
#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>

#include <optional>

namespace torchlayers {

// Whether reverse and forward AD record.
struct Modes {
  bool grad;
  bool forward_grad;

  static Modes of_thread() {
    const auto& state = c10::AutogradState::get_tls_state();
    return {state.get_grad_mode(), state.get_fw_grad_mode()};
  }
  void set() const {
    auto& state = c10::AutogradState::get_tls_state();
    state.set_grad_mode(grad);
    state.set_fw_grad_mode(forward_grad);
  }
};

// Turns inference mode off while the guard lives, because autograd records nothing in it. That
// alone would also turn both grad modes on, so they are restored.
inline void without_inference(std::optional<c10::InferenceMode>& guard) {
  if (!c10::InferenceMode::is_enabled()) {
    return;
  }
  const Modes modes = Modes::of_thread();
  guard.emplace(false);
  modes.set();
}

} // namespace torchlayers
