// The Python bindings of csrc/graph/.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchlayers::graph {

void bind(pybind11::module_& m);

} // namespace torchlayers::graph
