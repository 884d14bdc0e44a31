// Modes of the thread that a transform switches.
#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>

#include <optional>

namespace torchlayers {

// Turns inference mode off while the guard lives. Autograd records nothing in
// inference mode, and turning it off as such would turn both grad modes on: those
// stay as they were.
inline void without_inference(std::optional<c10::InferenceMode>& guard) {
  if (!c10::InferenceMode::is_enabled()) {
    return;
  }
  auto& state = c10::AutogradState::get_tls_state();
  const bool grad_mode = state.get_grad_mode();
  const bool forward_grad_mode = state.get_fw_grad_mode();
  guard.emplace(false);
  state.set_grad_mode(grad_mode);
  state.set_fw_grad_mode(forward_grad_mode);
}

} // namespace torchlayers
