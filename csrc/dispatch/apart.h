// Operators that are taken apart above every layer.
#pragma once

#include <torch/library.h>

namespace torchlayers {

// Operators of lists (torch._foreach_add, which the optimizers of torch.optim are made of) become
// one of each member, where a layer follows any of these: torch has no batching rules for them, and
// derivatives of some. And y[mask] = value, with a mask of each sample's own, becomes a choice: as
// an index the mask would be places, as many as it has in each sample, which nobody can know; what
// is written is known without them.
void register_taken_apart(torch::Library& on_front);

} // namespace torchlayers
