// Errors in one form: what happened, where in the user's code, what to do.
#pragma once

#include <c10/util/Exception.h>

#include "core/hooks.h"

namespace torchlayers {

template <class... Parts>
[[noreturn]] void raise(const Parts&... parts) {
  TORCH_CHECK(false, "torchlayers: ", parts..., hooks.python_location());
}

// The same as a NotImplementedError.
template <class... Parts>
[[noreturn]] void raise_not_implemented(const Parts&... parts) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "torchlayers: ", parts..., hooks.python_location());
}

} // namespace torchlayers
