// Random operators under vmap that torch's batching rules reject or get wrong.
#pragma once

#include "layers/vmap/vmap.h"
#include "rules/batching/batched_call.h"

namespace torchlayers {

// NOTE [The same draws]
// With randomness="same" each sample draws what it would draw alone, from generators in the same
// state. If only a sample's shape matters (uniform), one draw serves all samples. If values matter
// (bernoulli of batched probabilities, multinomial), the operator is called sample by sample, and
// everything that it may draw from is reset in between: torch's generator, or the one that was
// passed, and the draw counts of keyed layers below. A mode that records operators sees no resets,
// so in that case one key is drawn, and every sample draws by it; not where the recording takes
// what is drawn for constants (linearize), which are to be those of the value. With "different" the
// same loop, without resets, runs operators that have no batching rule and would otherwise be
// called once for all samples.

// Replaces the arguments by the results; returns false for operators that torch's rules handle.
bool draw(const Operator& op, Args& args, BatchedCall& call, const VmapLayer& layer);

// Whether what is drawn on this thread becomes a constant of the graph that is being recorded.
bool& draws_are_constants();

} // namespace torchlayers
