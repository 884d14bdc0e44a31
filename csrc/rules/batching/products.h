// Products by a sparse matrix; batching rules otherwise leave sparse tensors to torch.
#pragma once

#include "rules/batching/batched_call.h"

namespace torchlayers {

// Multiplies one sparse matrix by the vectors or matrices of all samples at once; false for any
// other call.
bool multiply_by_sparse(BatchedCall& call);

} // namespace torchlayers
