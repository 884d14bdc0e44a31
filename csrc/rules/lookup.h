// Operators that share another operator's rules.
#pragma once

#include <ATen/core/operator_name.h>

#include <optional>

namespace torchlayers {

// The view operator (slice) that an operator without rules (slice_copy) copies, and whose rules it
// uses. functionalize replaces views by such copies.
std::optional<c10::OperatorName> view_copied_by(const c10::OperatorName& name);

// The operator's own name, or that of the view it copies.
inline c10::OperatorName name_in_table(const c10::OperatorName& name) {
  return view_copied_by(name).value_or(name);
}

} // namespace torchlayers
