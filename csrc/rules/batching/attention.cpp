// Attention, with torch's CPU kernel.

#include "core/aten_functions.h"
#include "rules/batching/families.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using at::Tensor;

// The kernel assumes that the elements of a row are adjacent.
Tensor with_whole_rows(const Tensor& tensor) {
  return tensor.stride(-1) == 1 ? tensor : tensor.contiguous();
}

// Whether some layer or autograd tracks operations on the tensor.
bool is_recorded(const Tensor& tensor) {
  if (tensor.requires_grad()) {
    return true;
  }
  if (const auto* wrapper = wrapper_of(tensor)) {
    return is_recorded(wrapper->value());
  }
  const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
  return batched != nullptr && is_recorded(batched->value());
}

// ..._for_cpu(query, key, value, dropout, is causal, mask, scale) and ..._backward(gradient, query,
// key, value, output, logsumexp, dropout, ...): merges the batch dimension into the samples' own.
bool attention(BatchedCall& call, size_t tensors) {
  const size_t mask = tensors + 2;
  // The kernel has no derivative by the mask. torch uses another one if the mask requires grad,
  // which a batched tensor does not show.
  if (call.is_batched(mask) && is_recorded(call.tensor(mask))) {
    return call.decompose();
  }
  if (call.rank(0) != 4 || call.count() == 0 || call.tensor(0).numel() == 0) {
    return false;
  }
  const int64_t batch = call.tensor(0).size(0);
  return call.give([&] {
    std::vector<Tensor> results = call.call_all(call.args_with([&](size_t i) {
      if (i != mask) {
        return with_whole_rows(call.expanded(i).flatten(0, 1));
      }
      if (!call.is_batched(i) && (call.rank(i) < 4 || call.tensor(i).size(0) == 1)) {
        return call.tensor(i); // shared by all
      }
      return with_whole_rows(
          BatchedCall::raised(call.expanded(i), 4)
              .expand({call.count(), batch, -1, -1, -1})
              .flatten(0, 1));
    }));
    for (Tensor& result : results) {
      result = result.unflatten(0, {call.count(), batch});
    }
    return results;
  });
}

} // namespace

void add_batched_attention(BatchingTable& rules) {
  rules.add(
      {"_scaled_dot_product_flash_attention_for_cpu"}, {attention, 3, /*counts_samples=*/true});
  rules.add(
      {"_scaled_dot_product_flash_attention_for_cpu_backward"},
      {attention, 6, /*counts_samples=*/true});
}

} // namespace torchlayers
