// Operators that functionalization makes of writes, differentiated by plain autograd.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/operator_name.h>

#include "core/operator.h"

namespace torchlayers {

// NOTE [Writes below all layers]
// functionalize turns writes and views into operators that layers have rules for. Below all layers
// plain autograd meets them, or torch.func's, in forward mode too. Of `copy`, of some fills and of
// detach_copy torch has no derivative, nor of copied views and x_scatter for complex numbers; that
// of as_strided_scatter is wrong: it drops the gradient outside the part. Where autograd would
// record them, they are computed from operators that it can differentiate.

// at::copy(x, source): x's memory layout with the values of source.
at::Tensor copied(const at::Tensor& x, const at::Tensor& source, bool non_blocking = false);

// How the operator of this name is called below all layers; null for all but those.
PlainForm find_plain_form(const c10::OperatorName& name);

} // namespace torchlayers
