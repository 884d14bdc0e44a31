// Operators whose tangents come from Python: rules that users register, and decompositions.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchlayers {

void bind_operators(pybind11::module_& m);

} // namespace torchlayers
