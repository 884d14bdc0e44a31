// Random operators under vmap that torch's batching rules refuse or get wrong.
#pragma once

#include "layers/vmap.h"
#include "rules/batching/batched_call.h"

namespace torchlayers {

// NOTE [The same draws]
// With randomness="same" each sample draws what it would draw alone, from generators in the same
// state. Where only a sample's shape counts (uniform), one draw serves all samples. Where values
// count (bernoulli of batched probabilities, multinomial), the operator is called sample by sample,
// and all that it may draw from is set back in between: torch's generator, or the one it was given,
// and the count of draws by a key of the layers below. None of this is seen by who records
// operators, so there one key is drawn, and every sample draws by it.
// With "different" the same loop, without setting back, is for operators that have no batching rule
// and would be called once for all samples.

// Puts the results in the place of the arguments; false for operators that torch's rules take.
bool draw(const Operator& op, Args& args, BatchedCall& call, const VmapLayer& layer);

} // namespace torchlayers
