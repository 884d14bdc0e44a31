// Operators whose tensors the dispatcher does not see.
#pragma once

#include <c10/core/DispatchKeySet.h>

#include "core/layer.h"

namespace torchlayers {

// NOTE [Hidden tensors]
// The dispatcher chooses a kernel by the tensors among an operator's arguments, and looks for them
// only in arguments of type Tensor, Tensor?, Tensor[] and Tensor?[]. Tensors in a Dict, a list of
// lists, an optional list or Any are hidden from it: autograd records nothing for such a tensor,
// and no batching rule is called. If all tensors are hidden, plain torch runs the operator's kernel
// as if its lines were part of the user's program, and the operators in it see the tensors. So the
// kernel is run at the front, above the layer, and so is that of a composite operator. Any other
// kernel is chosen without the hidden tensors and lies below the layer, where their derivatives and
// samples would be lost: that is an error, which names the argument, and so are derivatives of
// hidden results.

// Runs or rejects an operator if its hidden tensors require it; false if it is to be processed as
// usual.
bool run_hidden(const Operator& op, c10::DispatchKeySet keys, Args* args, const Layer& layer);

} // namespace torchlayers
