// Operators whose tensors the dispatcher does not see.
#pragma once

#include <c10/core/DispatchKeySet.h>

#include "core/layer.h"

namespace torchlayers {

// NOTE [Hidden tensors]
// The dispatcher chooses a kernel by the tensors among an operator's arguments, and looks for them
// in arguments of type Tensor, Tensor?, Tensor[] and Tensor?[] alone. What a Dict, a list of lists,
// an optional list or Any holds is hidden from it: autograd records nothing for such a tensor, and
// no batching rule is asked. Where all tensors are hidden, plain torch runs the operator's kernel
// as if its lines stood in the user's program, and the operators in it see the tensors. So the
// kernel is run at the front, above the layer, and so is that of an operator that is made of
// others. Any other kernel is chosen without the hidden tensors and lies below the layer, where
// their derivatives and samples would be lost: that is refused by name, and so are derivatives of
// hidden results.

// Runs or refuses an operator whose hidden tensors need it; false where it may go its usual way.
bool run_hidden(const Operator& op, c10::DispatchKeySet keys, Args* args, const Layer& layer);

} // namespace torchlayers
