#include "layers/level_views.h"

#include <algorithm>

#include "core/errors.h"
#include "core/stack.h"
#include "layers/transforms.h"
#include "values/batched.h"
#include "values/functional.h"
#include "values/without_strides.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

int64_t top_level() {
  return static_cast<int64_t>(mirror().size());
}

const Layer& ours_at(int64_t level) {
  const Layer* layer = layer_at(level);
  if (layer == nullptr) {
    raise(
        "torchlayers.tap can't be used under a transform of torch.func (level {}): use "
        "torchlayers' transform instead.",
        level);
  }
  return *layer;
}

// Removes the wrappers that an operator's result got from levels that its argument had left.
at::Tensor stripped(at::Tensor tensor, int64_t level) {
  for (int64_t above = top_level(); above >= level; --above) {
    tensor = unwrap(tensor, above);
  }
  return tensor;
}

const at::functorch::DynamicLayer& entry_at(int64_t level) {
  return mirror()[static_cast<size_t>(level - 1)];
}

bool is_vmap(int64_t level) {
  return entry_at(level).key() == at::functorch::TransformType::Vmap;
}

// The value that a layer other than a vmap has wrapped, whatever wraps it.
at::Tensor inside(const at::Tensor& tensor, int64_t level) {
  const auto* functional = functional_of(tensor);
  return functional != nullptr && functional->level() == level ? functional->value()
                                                               : unwrap(tensor, level);
}

// Takes a tensor out of a level, the innermost of those that it is still in.
at::Tensor taken_out(const at::Tensor& tensor, int64_t level, Hold& hold) {
  if (!is_vmap(level)) {
    return inside(tensor, level);
  }
  const at::Tensor shown = shown_at(tensor, level);
  hold.stands_for_another = hold.stands_for_another || !shown.is_same(tensor);
  const auto* batched = at::functorch::maybeGetBatchedImpl(shown);
  const bool is_batched = batched != nullptr && batched->level() == level;
  hold.samples.insert(hold.samples.begin(), {level, is_batched ? batched->bdim() : -1});
  return is_batched ? at::Tensor(batched->value()) : shown;
}

} // namespace

at::Tensor seen_from(const at::Tensor& tensor, int64_t level) {
  at::Tensor seen = without_dead_wrappers(tensor);
  for (int64_t above = top_level(); above > level; --above) {
    const Layer& layer = ours_at(above);
    seen = layer.batch_size() != nullptr ? remove_batch_dim(seen, above, *layer.batch_size(), 0)
                                         : inside(seen, above);
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

int64_t Hold::innermost_vmap() const {
  const auto found = std::ranges::find_if(
      samples.rbegin(), samples.rend(), [](const Samples& each) { return each.dim >= 0; });
  return found != samples.rend() ? found->of : 0;
}

std::pair<at::Tensor, Hold> held_at(const at::Tensor& tensor, int64_t level) {
  at::Tensor held = without_dead_wrappers(tensor);
  Hold hold{level, {}};
  for (int64_t above = top_level(); above > level; --above) {
    held = is_vmap(above) ? taken_out(held, above, hold) : inside(held, above);
  }
  return {std::move(held), std::move(hold)};
}

std::pair<at::Tensor, Hold> recorded(const at::Tensor& tensor) {
  at::Tensor held = without_dead_wrappers(tensor);
  Hold hold;
  int64_t level = top_level();
  // Of a functional tensor, autograd records the value.
  const auto is_inside = [](const at::Tensor& tensor) {
    return !tensor.requires_grad() || functional_of(tensor) != nullptr;
  };
  for (; level > 0 && is_inside(held); --level) {
    held = taken_out(held, level, hold);
  }
  if (!held.requires_grad()) {
    return {};
  }
  const auto* wrapper = wrapper_of(held);
  hold.level = wrapper != nullptr ? wrapper->level().value_or(0) : 0;
  // A captured tensor is of an outer level, where it is the same for all samples.
  while (level > hold.level) {
    held = taken_out(held, level--, hold);
  }
  return {std::move(held), std::move(hold)};
}

at::Tensor shown_by(const Hold& hold, at::Tensor tensor, int64_t from) {
  auto samples = hold.samples.begin();
  for (int64_t level = 1; level <= top_level(); ++level) {
    if (!is_vmap(level)) {
      if (level > from) { // it is the transform's own: the hook may write to it
        tensor = wrapper_around(tensor, entry_at(level).interpreter());
      }
      continue;
    }
    samples = std::find_if(
        samples, hold.samples.end(), [&](const auto& each) { return each.of >= level; });
    if (samples == hold.samples.end() || samples->of > level || samples->dim < 0) {
      continue;
    }
    const Layer* layer = layer_at(level);
    tensor = layer != nullptr ? batched(std::move(tensor), samples->dim, *layer)
                              : at::functorch::makeBatched(std::move(tensor), samples->dim, level);
  }
  return tensor;
}

at::Tensor taken_from(const Hold& hold, const at::Tensor& made) {
  at::Tensor taken = without_dead_wrappers(made);
  auto samples = hold.samples.rbegin();
  for (int64_t above = top_level(); above > hold.level; --above) {
    while (samples != hold.samples.rend() && samples->of > above) {
      ++samples;
    }
    if (samples != hold.samples.rend() && samples->of == above && samples->dim >= 0) {
      const c10::SymInt size = entry_at(above).batchSize();
      taken = remove_batch_dim(taken, above, size, std::min(samples->dim, taken.dim()));
      taken = stripped(std::move(taken), above);
    } else if (!is_vmap(above)) {
      taken = unwrap(taken, above);
    } else if (batched_levels(taken)[static_cast<size_t>(above)]) {
      raise(
          "a hook returned a different gradient for each sample of vmap (level {}), but its tensor "
          "is the same for all samples. Sum the gradient over the samples in the hook, or register "
          "the hook on a batched tensor.",
          above);
    }
  }
  return taken;
}

} // namespace torchlayers
