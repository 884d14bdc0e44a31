#include "values/wrapper.h"

#include "core/args.h"
#include "core/callbacks.h"
#include "core/errors.h"
#include "core/stack.h"
#include "values/batched.h"
#include "values/functional.h"
#include "values/without_strides.h"

namespace torchlayers {

namespace {

using at::functorch::TensorWrapper;

// A wrapper's life handle is private in torch; an explicit instantiation may name it.
template <auto Handle>
struct RevealWrapperLife {
  friend const std::shared_ptr<bool>& life_of(const TensorWrapper& wrapper) {
    return wrapper.*Handle;
  }
};
template struct RevealWrapperLife<&TensorWrapper::is_alive_>;
const std::shared_ptr<bool>& life_of(const TensorWrapper& wrapper);

[[noreturn]] void raise_of_another_thread(int64_t level, const Layer& layer) {
  raise_as(
      ErrorClass::EscapedTensor,
      "a tensor of grad or jvp (level {}) on another thread was used in {}. That transform is only "
      "active on its own thread. Pass the tensor's value, or run the transform on this thread.",
      level,
      layer.name());
}

[[noreturn]] void raise_escaped(const std::string& what, const Layer& layer) {
  raise_as(
      ErrorClass::EscapedTensor,
      "{} was used in {}, outside that transform. Return it from the inner function instead of "
      "keeping it.",
      what,
      layer.name());
}

// Whether it belongs to the layer at its level of this thread's stack. NOTE [Whose batch].
bool is_of(const at::functorch::BatchedTensorImpl& batched, const Layer* layer) {
  if (const uint64_t number = number_of(batched)) {
    return layer != nullptr && layer->number() == number;
  }
  // torch's kind does not identify its vmap, which may be torch.func's.
  return layer == nullptr || (layer->batch_size() != nullptr &&
                              batched.value().sym_size(batched.bdim()) == *layer->batch_size());
}

} // namespace

bool is_of_this_stack(const TensorWrapper& wrapper, int64_t level) {
  const auto& entries = mirror();
  const auto place = static_cast<size_t>(level - 1);
  return place < entries.size() && entries[place].interpreter().is_alive_ptr() == life_of(wrapper);
}

bool is_of_layer(const TensorWrapper& wrapper, const Layer& layer) {
  return life_of(wrapper).get() == layer.life();
}

// By the layer that the wrapper belongs to, if it can be found: on the stack, or taken off it while
// it processes an operator.
std::string described(const at::Tensor& tensor) {
  if (const auto* batched = at::functorch::maybeGetBatchedImpl(tensor)) {
    return "a tensor batched by vmap (level " + std::to_string(batched->level()) + ")";
  }
  const TensorWrapper& wrapper = *wrapper_of(tensor);
  std::string kind = "grad or jvp";
  const auto look_at = [&](const Layer& layer) {
    if (is_of_layer(wrapper, layer)) {
      kind = layer.kind();
    }
  };
  Processing::visit_all(look_at);
  for (const Layer* layer : layers_on_stack()) {
    if (layer != nullptr) {
      look_at(*layer);
    }
  }
  return "a tensor of " + kind + " (level " + std::to_string(wrapper.level().value_or(0)) + ")";
}

at::Tensor without_dead_wrappers(const at::Tensor& tensor) {
  at::Tensor value = tensor;
  while (has_dead_wrapper(value)) {
    if (is_of_custom_layer(value)) {
      raise_as(
          ErrorClass::EscapedTensor,
          "a tensor of a layer that has ended was used. Return it from the function, or read its "
          "`value` and `parts`.");
    }
    // A copy: the wrapper lives in `value`.
    value = without_ended_functionalize(wrapper_of(value)->value());
  }
  return value;
}

at::Tensor wrap(const at::Tensor& value, const Layer& layer, bool is_immutable) {
  const auto& entry = mirror().back();
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(entry.layerId() == layer.level());
  if (value.key_set().has(c10::DispatchKey::Python)) {
    callbacks.met_subclass(value);
  }
  return wrapper_around(value, entry.interpreter(), is_immutable);
}

bool is_at_level(const at::Tensor& tensor, const Layer& layer) {
  const auto* wrapper = wrapper_of(tensor);
  if (wrapper == nullptr) {
    check_not_escaped(tensor, layer);
    return false;
  }
  if (is_of_layer(*wrapper, layer)) {
    return true;
  }
  const auto level = wrapper->level();
  if (*level > layer.level()) {
    raise_escaped(described(tensor), layer);
  }
  if (!is_of_this_stack(*wrapper, *level)) {
    raise_of_another_thread(*level, layer);
  }
  return *level == layer.level();
}

at::Tensor lift(const at::Tensor& tensor, const Layer& layer) {
  if (has_dead_wrapper(tensor)) {
    return lift(without_dead_wrappers(tensor), layer);
  }
  return is_at_level(tensor, layer) ? tensor : wrap(tensor, layer, /*is_immutable=*/true);
}

at::Tensor unwrap(const at::Tensor& tensor, int64_t level) {
  auto* wrapper = wrapper_of(tensor);
  if (wrapper == nullptr) {
    return tensor;
  }
  const auto wrapper_level = wrapper->level();
  if (!wrapper_level) {
    return unwrap(without_dead_wrappers(tensor), level);
  }
  return *wrapper_level == level ? wrapper->value() : tensor;
}

const at::Tensor& holder_of(const at::Tensor& tensor) {
  if (const auto* wrapper = wrapper_of(tensor)) {
    return holder_of(wrapper->value());
  }
  if (const auto* batched = at::functorch::maybeGetBatchedImpl(tensor)) {
    return holder_of(batched->value());
  }
  return tensor;
}

std::bitset<64> batched_levels(const at::Tensor& tensor) {
  if (const auto* wrapper = wrapper_of(tensor)) {
    return batched_levels(wrapper->value());
  }
  if (const auto* batched = at::functorch::maybeGetBatchedImpl(tensor)) {
    return batched_levels(batched->value()).set(static_cast<size_t>(batched->level()) % 64);
  }
  return {};
}

bool concerns(const at::Tensor& tensor, std::bitset<64> levels, int64_t below) {
  if (const auto* wrapper = wrapper_of(tensor)) {
    const auto level = wrapper->is_alive() ? wrapper->level() : std::nullopt;
    const bool is_above_lowest =
        level && *level < below && (levels << (64 - static_cast<size_t>(*level))).any();
    return is_above_lowest || concerns(wrapper->value(), levels, below);
  }
  if (const auto* batched = at::functorch::maybeGetBatchedImpl(tensor)) {
    if (batched->level() == below) {
      return (batched_levels(batched->value()) & levels).any();
    }
    return levels.test(static_cast<size_t>(batched->level()) % 64) ||
           concerns(batched->value(), levels, below);
  }
  return false;
}

bool has_escaped(const at::Tensor& tensor, const Layer& layer) {
  const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
  if (!batched) {
    return false;
  }
  // A vmap's own tensors may be at its level; at a grad's or jvp's level there are none.
  if (batched->level() == layer.level()) {
    return !is_of(*batched, &layer);
  }
  return batched->level() > layer.level() || !is_of(*batched, layer_at(batched->level()));
}

void check_not_escaped(const at::Tensor& tensor, const Layer& layer) {
  if (has_escaped(tensor, layer)) {
    raise_escaped(described(tensor), layer);
  }
}

void check_from_outside(const at::Tensor& tensor, const Layer& layer) {
  const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
  if (batched != nullptr && batched->level() == layer.level()) {
    raise_escaped(described(tensor), layer);
  }
  is_dead_or_escaped(tensor, layer);
}

void take_off_dead_wrappers(const Operator& op, Args& args) {
  change_tensors(args, op.num_args, [](const at::Tensor& tensor, size_t) {
    return without_dead_wrappers(tensor);
  });
}

bool is_dead_or_escaped(const at::Tensor& tensor, const Layer& layer) {
  const auto* wrapper = wrapper_of(tensor);
  if (wrapper == nullptr) {
    check_not_escaped(tensor, layer);
    return false;
  }
  const auto level = wrapper->level();
  if (level && *level >= layer.level()) { // this layer wraps nothing itself
    raise_escaped(described(tensor), layer);
  }
  if (level && !is_of_this_stack(*wrapper, *level)) {
    raise_of_another_thread(*level, layer);
  }
  return !level;
}

void unwrap_dead_and_check(const Operator& op, Args& args, const Layer& layer) {
  change_tensors(args, op.num_args, [&](const at::Tensor& tensor, size_t) {
    return is_dead_or_escaped(tensor, layer) ? without_dead_wrappers(tensor) : tensor;
  });
}

} // namespace torchlayers
