#include "layers/captured.h"

#include <algorithm>
#include <string>

#include "core/args.h"
#include "core/errors.h"
#include "core/stack.h"
#include "layers/custom_function.h"
#include "layers/vmap/vmap.h"
#include "values/batched.h"
#include "values/functional.h"
#include "values/tangent.h"
#include "values/wrapper.h"

namespace torchlayers {

std::atomic<int> functions_at_work{0};

namespace {

using at::functorch::BatchedTensorImpl;

// The innermost layer that is off this thread's stack and for which `is` holds, or null.
template <class Is>
const Layer* layer_off_stack(const Is& is) {
  const Layer* found = nullptr;
  Processing::visit_all([&](const Layer& layer) {
    if (found == nullptr && is(layer)) {
      found = &layer;
    }
  });
  return found;
}

bool has_derivative(const at::Tensor& tensor, const Layer& layer) {
  return (tensor.requires_grad() && FunctionsOfOneLevel::are_recorded_on(layer)) ||
         tangent_of(tensor, layer.level()).defined();
}

[[noreturn]] void raise_captured(const std::string& what) {
  raise_as(
      ErrorClass::EscapedTensor,
      "a tensor {} was used by an autograd.Function outside that transform. Pass it to apply() as "
      "an argument instead of capturing it.",
      what);
}

at::Tensor constant_in(const at::Tensor& tensor, const Layer& layer) {
  if (has_derivative(tensor, layer)) {
    raise_captured("of " + layer.name());
  }
  return resolve_captured(wrapper_of(tensor)->value());
}

at::Tensor operand_or_constant_in(const at::Tensor& tensor, const Layer& layer) {
  return FunctionsOfOneLevel::has_operand(tensor, layer)
             ? resolve_captured(wrapper_of(tensor)->value())
             : constant_in(tensor, layer);
}

at::Tensor without_wrapper(const at::Tensor& tensor, const at::functorch::TensorWrapper& wrapper) {
  const auto level = wrapper.level();
  if (!level) {
    return resolve_captured(without_dead_wrappers(tensor));
  }
  if (is_of_this_stack(wrapper, *level)) {
    return tensor;
  }
  const Layer* layer =
      layer_off_stack([&](const Layer& each) { return is_of_layer(wrapper, each); });
  if (layer != nullptr) {
    return operand_or_constant_in(tensor, *layer);
  }
  if (mirror().empty()) { // where no layer looks at it
    raise_captured("of another thread's grad or jvp");
  }
  return tensor;
}

at::Tensor batched_again(const at::Tensor& tensor, const BatchedTensorImpl& batched) {
  const uint64_t number = number_of(batched);
  const at::Tensor value = resolve_captured(batched.value());
  const Layer* layer = entered_for(number);
  if (layer != nullptr) {
    const bool is_at_home = layer->number() == number && value.is_same(batched.value());
    return is_at_home ? tensor : torchlayers::batched(value, batched.bdim(), *layer);
  }
  layer = layer_off_stack([&](const Layer& each) { return each.number() == number; });
  if (layer != nullptr) {
    raise_captured("batched by " + layer->name());
  }
  return tensor;
}

} // namespace

const Layer* entered_for(uint64_t number) {
  const auto layers = layers_on_stack();
  const auto is_for = [&](const Layer* layer) {
    const auto* vmap = dynamic_cast<const VmapLayer*>(layer);
    return vmap != nullptr && (vmap->number() == number || vmap->again_of() == number);
  };
  const auto found = std::ranges::find_if(layers, is_for);
  return number != 0 && found != layers.end() ? *found : nullptr;
}

at::Tensor resolve_captured(const at::Tensor& tensor) {
  if (const auto* wrapper = wrapper_of(tensor)) {
    return without_wrapper(tensor, *wrapper);
  }
  if (const auto* batched = at::functorch::maybeGetBatchedImpl(tensor)) {
    return batched_again(tensor, *batched);
  }
  return has_ended_functionalize(tensor) ? resolve_captured(without_ended_functionalize(tensor))
                                         : tensor;
}

at::Tensor resolve_returned(const at::Tensor& tensor) {
  const Layer& layer = entered_layer();
  const at::Tensor resolved = resolve_captured(tensor);
  const auto* wrapper = wrapper_of(resolved);
  const bool is_of_top = wrapper != nullptr && is_of_layer(*wrapper, layer);
  return is_of_top ? constant_in(resolved, layer) : resolved;
}

void resolve_captured(const Operator& op, Args& args) {
  change_tensors(
      args, op.num_args, [](const at::Tensor& tensor, size_t) { return resolve_captured(tensor); });
}

} // namespace torchlayers
