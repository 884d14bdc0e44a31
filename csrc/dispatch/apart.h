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

// Recurrent networks become their steps: torch has no batching rules for them. So does a layer of
// an LSTM, which torch runs as one operator of oneDNN, but for one grad by itself: that operator
// has one gradient, and no other derivative.
void register_recurrent(torch::Library& on_front);

} // namespace torchlayers
