// vmap over a batch of no samples.
#pragma once

#include "layers/vmap.h"

namespace torchlayers {

// NOTE [No samples]
// A batch of 0 samples has results all the same, of 0 samples each, in the shape and dtype that one
// sample's have. Kernels called on a batch whole are not made for that: some divide by its size,
// others take the absent elements for the sample's and refuse. So an operator is asked for one
// sample's results instead, on zeros or ones, and the batch's are made empty, views too, as nothing
// is there to be shared. They have those arguments for their history that they would have, for
// derivatives of zero to arrive there. Where it refuses both (a matrix that is singular), it is
// called on the batch like any other; and so are in-place operators, and those that draw from a
// generator of the user's.

// Ends the call, if it is of a batch of no samples, on which the operator can be run so.
bool run_on_no_samples(
    const Operator& op, const Args& args, BatchedCall& call, const VmapLayer& layer);

} // namespace torchlayers
