// Hides torch function modes.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>

namespace torchlayers {

// While it lives, no mode sees a call of torch's functions, and no subclass overrides one.
class WithoutFunctionModes {
 public:
  WithoutFunctionModes() : state_(Functions::get_disabled_state()) {
    Functions::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  WithoutFunctionModes(const WithoutFunctionModes&) = delete;
  WithoutFunctionModes& operator=(const WithoutFunctionModes&) = delete;
  ~WithoutFunctionModes() {
    Functions::set_disabled_state(state_);
  }

 private:
  using Functions = at::impl::PythonTorchFunctionTLS;
  at::impl::TorchFunctionDisabledState state_;
};

} // namespace torchlayers
