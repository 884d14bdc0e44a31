// x.data = y
#pragma once

#include <torch/library.h>

namespace torchlayers {

// Assigning to .data makes y's memory x's, in place, whatever kinds of tensors they are if they are
// dense. A wrapper has no memory, and a plain tensor that takes one over is a wrapper without a
// level and a value: the next operator to look at it reads past its end. PyTorch asks this
// operator whether the two fit; so is it asked before `module.to(...)` assigns.
void register_data(torch::Library& on_front);

} // namespace torchlayers
