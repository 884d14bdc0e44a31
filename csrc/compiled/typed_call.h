// Operators called by their own signatures: no stack, nothing boxed.
#pragma once

#include <memory>

#include "compiled/program.h"

namespace torchlayers::compiled {

// Null where the step's operator has none of the signatures that are known here, or an argument
// that is no tensor is no constant.
std::shared_ptr<const TypedCall> typed_call(const Step& step);

} // namespace torchlayers::compiled
