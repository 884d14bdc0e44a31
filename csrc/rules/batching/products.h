// Products by a matrix without strides, which batching rules otherwise leave to torch.
#pragma once

#include "rules/batching/batched_call.h"

namespace torchlayers {

// One sparse matrix by the vectors or matrices of all samples at once; false where it is another
// call.
bool multiply_by_sparse(BatchedCall& call);

} // namespace torchlayers
