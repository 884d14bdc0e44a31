// Packed sequences.

#include "core/aten_functions.h"
#include "rules/batching/families.h"

namespace torchlayers {
namespace {

using at::Tensor;

// _pack_padded_sequence(padded, lengths, batch first): (packed, the number of sequences at each
// step). Samples that share the list of lengths act like additional features.
bool pack(BatchedCall& call, size_t) {
  if (!call.only(0) || call.rank(0) < 2) {
    return false;
  }
  return call.give_some({true, false}, [&] {
    Args args = call.args_with([&](size_t i) { return call.tensor(i); });
    args[0] = call.value(0).movedim(0, 2);
    auto results = call.call_all(std::move(args));
    results[0] = results[0].movedim(1, 0);
    return results;
  });
}

} // namespace

void add_batched_packed_sequence(BatchingTable& rules) {
  rules.add({"_pack_padded_sequence"}, {pack});
}

} // namespace torchlayers
