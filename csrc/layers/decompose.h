// Operators made of others, by somebody who is not the dispatcher.
#pragma once

#include "core/operator.h"

namespace torchlayers {

// Runs the operator as the others that it is made of, and tells whether anybody knows
// those. python_operators.cpp supplies it.
extern bool (*decompose)(const Operator& op, Args& args);

} // namespace torchlayers
