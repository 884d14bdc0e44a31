// vmap over a batch of no samples.
#pragma once

#include "layers/vmap/vmap.h"

namespace torchlayers {

// NOTE [No samples]
// A batch of 0 samples still has results, of 0 samples each, with the shape and dtype of one
// sample's. Kernels called on a whole batch are not made for that: some divide by its size, others
// take the absent elements for the sample's and reject them. So an operator is run on one sample
// instead, of zeros or ones, and the batch's results are made empty; views too, since there is
// nothing to share. Their history has the arguments that it would have otherwise, so that these get
// derivatives of zero. If the operator rejects both (a singular matrix), it is called on the batch
// like any other; so are in-place operators, and those that draw from a user's generator.

// Runs the operator like that, and returns true, if the batch has no samples and the operator
// allows it.
bool run_on_no_samples(
    const Operator& op, const Args& args, BatchedCall& call, const VmapLayer& layer);

} // namespace torchlayers
