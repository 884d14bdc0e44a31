// Operators that functionalization makes of writes, differentiated by plain autograd.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/operator_name.h>

#include <optional>

#include "core/operator.h"

namespace torchlayers {

// NOTE [Writes below all layers]
// functionalize turns writes into operators that layers have rules for. Below all layers plain
// autograd meets them, in forward mode too, and torch has no derivative of `copy`, of some fills
// and of detach_copy, and a wrong one of as_strided_scatter: it drops the gradient outside the
// part. Where autograd would record them, they are computed from operators that it can
// differentiate.

// at::copy(x, source): x's memory layout with the values of source.
at::Tensor copied(const at::Tensor& x, const at::Tensor& source, bool non_blocking = false);

// at::as_strided_scatter. No offset: x's own.
at::Tensor scattered_as_strided(
    const at::Tensor& x,
    const at::Tensor& part,
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    std::optional<int64_t> offset);

// How the operator of this name is called below all layers; null for all but those.
PlainForm find_plain_form(const c10::OperatorName& name);

} // namespace torchlayers
