// Errors in one form: what happened, where in the user's code, what to do.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace torchlayers {

// " In train.py:41, `loss.item()`." for the user's innermost line, or "" where no
// Python is running. bindings.cpp supplies it.
extern std::string (*python_location)();

template <class... Parts>
[[noreturn]] void raise(const Parts&... parts) {
  TORCH_CHECK(false, "torchlayers: ", parts..., python_location());
}

// The same as a NotImplementedError.
template <class... Parts>
[[noreturn]] void raise_not_implemented(const Parts&... parts) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "torchlayers: ", parts..., python_location());
}

} // namespace torchlayers
