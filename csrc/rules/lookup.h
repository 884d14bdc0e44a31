// Operators whose mathematics is another's.
#pragma once

#include <ATen/core/operator_name.h>

#include <optional>

namespace torchlayers {

// The view (slice) that an operator without rules of its own (slice_copy) copies: it has the
// view's. functionalize calls it in the view's place.
std::optional<c10::OperatorName> view_copied_by(const c10::OperatorName& name);

} // namespace torchlayers
