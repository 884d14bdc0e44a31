// Rules that users write in Python (torchlayers.extend).
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "core/operator.h"

namespace torchlayers {

// rule(primals, tangents, **kwargs) -> (results, tangents). Never freed, because the caller can't
// know whether it is being used.
const JvpRule* new_jvp_rule(pybind11::object function);

// rule(cotangents, primals, results, **kwargs) -> gradients.
const VjpRule* new_vjp_rule(const Operator& op, pybind11::object function);

} // namespace torchlayers
