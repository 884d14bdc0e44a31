// vmap of what goes where a mask says.
#pragma once

#include "core/layer.h"

namespace torchlayers {

// x[mask] = value, for a batched mask and one value, and tells whether it was that. As an
// index a mask becomes places, as many as it has in each sample, which vmap can't have;
// but what it writes is known without them.
bool fill_by_mask(const Operator& op, Args& args, const Layer& layer);

} // namespace torchlayers
