// Calls of operators by their C++ signatures: no stack, no boxed values.
#pragma once

#include <memory>

#include "compiled/program.h"

namespace torchlayers::compiled {

// Null if the signature of the step's operator is not supported here, or if one of the arguments
// that are not tensors is not constant.
std::shared_ptr<const TypedCall> typed_call(const Step& step);

} // namespace torchlayers::compiled
