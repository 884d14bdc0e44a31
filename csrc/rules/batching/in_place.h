// vmap of in-place operators for which torch has no batching rule.
#pragma once

#include "core/layer.h"

namespace torchlayers {

// Runs x.lerp_(...) as x.copy_(x.lerp(...)), and returns whether it did so. torch would loop over
// the samples, with a warning, and autograd then takes each write for one to what the others saved.
bool write_functional(const Operator& op, Args& args, const Layer& layer);

// Runs x.resize_(sizes) such that each sample keeps its own first elements, and returns whether it
// did so. torch's rule resizes the batch as a whole, which mixes the samples' elements.
bool resize_samples(const Operator& op, Args& args, const Layer& layer);

// Runs x.fill_(y) as x.copy_(y), and returns whether it did so. Since 2.15 torch's rule accesses
// the storage of both, and under another layer neither has one.
bool fill_samples(const Operator& op, Args& args, const Layer& layer);

// Runs x.detach_() by detaching the batch, and returns whether it did so. torch would loop over the
// samples, which are views, and refuses to detach those.
bool detach_samples(const Operator& op, Args& args, const Layer& layer);

} // namespace torchlayers
