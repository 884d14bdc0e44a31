// vmap of in-place operators for which torch has no batching rule.
#pragma once

#include "core/layer.h"

namespace torchlayers {

// x.lerp_(...) as x.copy_(x.lerp(...)), and tells whether it did so. torch would loop over the
// samples, with a warning.
bool write_functional(const Operator& op, Args& args, const Layer& layer);

// x.resize_(sizes), where each sample keeps its own first elements, and tells whether it was that.
// torch's rule resizes the batch as a whole, and the samples' elements get mixed.
bool resize_samples(const Operator& op, Args& args, const Layer& layer);

// x.fill_(y) as x.copy_(y), and tells whether it was that. torch's rule asks for the memory of
// both, since 2.15, and where another layer runs below neither has any.
bool fill_samples(const Operator& op, Args& args, const Layer& layer);

} // namespace torchlayers
