// In-place operators on functional tensors.
#pragma once

#include "core/layer.h"

namespace torchlayers {

// Runs an in-place operator on a functional tensor by the functional operator that corresponds to
// it, whose result becomes the tensor's value. Otherwise does nothing and returns false: torch's
// kernel has to run. Throws if the tensor is from outside the function, or can't be written to.
//
// torch's kernel first runs the operator on tensors without data, to raise errors; where that is
// written in Python, it takes longer than all of the rest, and fails if it looks for tangents.
bool write_to_functional(const Operator& op, Args& args, const Layer& layer);

} // namespace torchlayers
