// Operators that are decomposed above every layer.
#pragma once

#include <torch/library.h>

namespace torchlayers {

// List operators (torch._foreach_add, which the optimizers of torch.optim use) become one operator
// per list member, if a layer follows any of these: torch has no batching rules for list operators,
// and derivatives of only some.
void register_lists(torch::Library& on_front);

// y[mask] = value, where each sample has its own mask, becomes a torch.where: as an index the mask
// would become positions, whose number differs between samples and is not known beforehand; the
// result is known without them. Further, rrelu becomes a product (NOTE [Slopes of rrelu]),
// polygamma_ a copy of what polygamma returns, view(dtype) one of view_as_real or view_as_complex
// if it can, and the mean of ctc_loss is taken of its losses.
void register_taken_apart(torch::Library& on_front);

// Recurrent networks are unrolled into their steps, because torch has no batching rules for them.
// So is a layer of an LSTM, which torch runs as one oneDNN operator, unless the only transform is
// one grad: that operator has a gradient, and no other derivative.
void register_recurrent(torch::Library& on_front);

} // namespace torchlayers
