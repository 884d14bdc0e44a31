#include "layers/taps.h"

#include <algorithm>

#include "core/errors.h"
#include "core/stack.h"
#include "layers/transforms.h"
#include "values/batched.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

int64_t top_level() {
  return static_cast<int64_t>(mirror().size());
}

const Layer& ours_at(int64_t level) {
  const Layer* layer = layer_at(level);
  if (layer == nullptr) {
    raise("a tap under a transform of torch.func (level {}): use torchlayers' instead.", level);
  }
  return *layer;
}

// Without the wrappers that an operator's result has got from levels that its argument had left.
at::Tensor stripped(at::Tensor tensor, int64_t level) {
  for (int64_t above = top_level(); above >= level; --above) {
    tensor = unwrap(tensor, above);
  }
  return tensor;
}

} // namespace

at::Tensor seen_from(const at::Tensor& tensor, int64_t level) {
  at::Tensor seen = without_dead_wrappers(tensor);
  for (int64_t above = top_level(); above > level; --above) {
    const Layer& layer = ours_at(above);
    seen = layer.batch_size() != nullptr ? remove_batch_dim(seen, above, *layer.batch_size(), 0)
                                         : unwrap(seen, above);
    seen = stripped(std::move(seen), above);
  }
  return seen;
}

at::Tensor sample_of(at::Tensor tensor, int64_t level) {
  for (int64_t above = level + 1; above <= top_level(); ++above) {
    const Layer& layer = ours_at(above);
    if (layer.batch_size() != nullptr) {
      tensor = batched(std::move(tensor), 0, layer);
    }
  }
  return tensor;
}

std::pair<at::Tensor, std::vector<int64_t>> held_at(const at::Tensor& tensor, int64_t level) {
  at::Tensor held = without_dead_wrappers(tensor);
  std::vector<int64_t> dims;
  for (int64_t above = top_level(); above > level; --above) {
    if (ours_at(above).batch_size() == nullptr) {
      held = unwrap(held, above);
      continue;
    }
    held = shown_at(held, above);
    const auto* batched = at::functorch::maybeGetBatchedImpl(held);
    const bool is_batched = batched != nullptr && batched->level() == above;
    dims.push_back(is_batched ? batched->bdim() : -1);
    if (is_batched) {
      held = at::Tensor(batched->value()); // a copy: `batched` lives in `held`
    }
  }
  std::ranges::reverse(dims);
  return {std::move(held), std::move(dims)};
}

} // namespace torchlayers
