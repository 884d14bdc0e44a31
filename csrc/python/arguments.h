// An operator's arguments and results as Python passes and returns them.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <utility>

#include "core/operator.h"

namespace torchlayers {

// The positional arguments, and those by keyword, without the Nones among them or with.
std::pair<pybind11::tuple, pybind11::dict> python_arguments(
    const c10::FunctionSchema& schema, const Args& args, bool with_nones);

// What Python returned, as the values of the schema's results. `whose`: "the jvp rule of".
Args results_from_python(const Operator& op, const pybind11::object& returned, const char* whose);

} // namespace torchlayers
