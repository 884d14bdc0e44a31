// What traces show of compiled functions.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchlayers {

// An entry of a compiled function has run a call. Does nothing outside traces.
void note_run(const pybind11::object& entry);

} // namespace torchlayers
