// The names of autograd's nodes.
#pragma once

#include <string>

#include "core/operator.h"

namespace torchlayers {

// "SqrtBackward0" for aten::sqrt, torch's name of that operator's node; "SliceBackward0_copy" for
// aten::slice_copy, which has slice's rules.
std::string node_name(const Operator& op);

} // namespace torchlayers
