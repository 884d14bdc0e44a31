// In-place operators that change how a functional tensor views its memory.
#pragma once

#include "core/layer.h"

namespace torchlayers {

// NOTE [Views in place]
// For x.t_() torch appends one more view to those that x is made by. Sizes and strides that the
// layer has set (NOTE [Strides of functional tensors]) would stay, and the strides and offset of
// x.as_strided_() would refer to the elements that x shows rather than to its memory. So x.t_() is
// run as x.t(), and x becomes the result.

// Runs such an operator, and returns whether it did so. Otherwise torch's kernel has to run: for
// resize_ to more elements than the memory has, for detach_ and for set_.
bool view_in_place(const Operator& op, Args& args, const Layer& layer);

} // namespace torchlayers
