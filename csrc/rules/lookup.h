// Operators that share another operator's rules.
#pragma once

#include <ATen/core/operator_name.h>

#include <optional>

namespace torchlayers {

// The view operator (slice) that an operator without rules (slice_copy) copies, and whose rules it
// uses. functionalize replaces views by such copies.
std::optional<c10::OperatorName> view_copied_by(const c10::OperatorName& name);

} // namespace torchlayers
