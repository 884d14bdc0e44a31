// What torch's batching rules refuse, said in terms of the user's function.
#pragma once

#include "../layer.h"

namespace torchlayers {

// Throws a clearer error in place of one that a batching rule threw, if it is one of
// those we know; else returns.
// `writes_unbatched`: the operator writes to a tensor that this layer did not batch.
void explain(
    const c10::Error& error, const Operator& op, const VmapLayer& layer, bool writes_unbatched);

// Whether an in-place operator's target is a tensor that this layer did not batch.
bool writes_unbatched(const Operator& op, const Args& args, const VmapLayer& layer);

// Throws if the operator makes one Python number of a tensor that this layer batched.
void refuse_to_read_number(const Operator& op, const Args& args, const VmapLayer& layer);

} // namespace torchlayers
