// An operator's arguments and results, as Python passes and returns them.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <utility>

#include "core/operator.h"

namespace torchlayers {

// One argument, of this type in the schema.
pybind11::object to_python(const c10::IValue& value, const c10::TypePtr& declared);

// The positional and the keyword arguments; `with_nones` includes keywords that are None, and have
// a default. A number that torch has made a tensor, the 2 of `x * 2`, is a number again unless
// `numbers_are_tensors`.
std::pair<pybind11::tuple, pybind11::dict> python_arguments(
    const c10::FunctionSchema& schema,
    const Args& args,
    bool with_nones,
    bool numbers_are_tensors = false);

// Converts a Python function's return value to the values of the schema's results. `whose` names
// the function in error messages: "the jvp rule of".
Args results_from_python(const Operator& op, const pybind11::object& returned, const char* whose);

} // namespace torchlayers
