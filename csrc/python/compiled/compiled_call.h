// Calls of compiled functions.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchlayers {

void bind_compiled_call(pybind11::module_& m);

} // namespace torchlayers
