// What autograd calls its nodes.
#pragma once

#include <string>

#include "core/operator.h"

namespace torchlayers {

// "SqrtBackward0" of aten::sqrt, as torch names the node of that operator; "SliceBackward0_copy" of
// aten::slice_copy, which has slice's rules.
std::string node_name(const Operator& op);

} // namespace torchlayers
