// Distances between the rows of two matrices.

#include "core/aten_functions.h"
#include "rules/batching/families.h"

namespace torchlayers {
namespace {

using at::Tensor;

// _cdist_forward(x, y, ...): between all pairs of rows.
bool distances(BatchedCall& call, size_t) {
  const int64_t m = call.rank(0);
  const int64_t n = call.rank(1);
  const bool of_x = call.is_batched(0);
  const bool of_y = call.is_batched(1);
  const bool lined_up = of_x && of_y ? m == n : (of_x && n <= m) || (of_y && m <= n);
  return m >= 2 && n >= 2 && lined_up && call.run();
}

// _cdist_backward(grad, x, y, p, distances), whose kernel reads memory as if each of them had the
// batch dimension: torch's own rule omits it for unbatched tensors.
bool distances_backward(BatchedCall& call, size_t) {
  const int64_t rank = call.rank(0);
  if (call.rank(4) != rank || call.rank(1) > rank || call.rank(2) > rank) {
    return false;
  }
  return call.give([&] {
    const auto in_memory = [&](size_t i) {
      return BatchedCall::raised(call.expanded(i), rank).contiguous();
    };
    return at::_cdist_backward(
        in_memory(0), in_memory(1), in_memory(2), call[3].toDouble(), in_memory(4));
  });
}

} // namespace

void add_batched_distances(BatchingTable& rules) {
  rules.add({"_cdist_forward"}, {distances});
  rules.add({"_cdist_backward"}, {distances_backward});
}

} // namespace torchlayers
