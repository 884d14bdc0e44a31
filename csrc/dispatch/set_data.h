// x.data = y
#pragma once

#include <torch/library.h>

namespace torchlayers {

// Assigning to .data makes y's memory x's, in place, for any kinds of dense tensors. A wrapper has
// no memory, and a plain tensor that takes one over is a wrapper without a level and a value: the
// next operator that looks at it reads past its end. PyTorch calls this operator to check whether
// the two fit, also before `module.to(...)` assigns.
void register_data(torch::Library& on_front);

} // namespace torchlayers
