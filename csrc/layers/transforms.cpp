#include "layers/transforms.h"

#include <ATen/MemoryOverlap.h>
#include <torch/csrc/autograd/autograd.h>

#include "core/aten_functions.h"
#include "core/keys.h"
#include "core/modes.h"
#include "core/skip_autograd.h"
#include "core/stack.h"
#include "core/trace/trace.h"
#include "layers/grad.h"
#include "reverse/node_hooks.h"
#include "reverse/pass.h"
#include "values/batched.h"
#include "values/local_storages.h"
#include "values/tangent.h"
#include "values/wrapper.h"

namespace torchlayers {

namespace {

// Whether they are handled here. If not, torch makes the tangent fit, or rejects it.
bool fits(const at::Tensor& primal, const at::Tensor& tangent) {
  return is_strided(primal) && is_strided(tangent) &&
         primal.scalar_type() == tangent.scalar_type() &&
         primal.sym_sizes() == tangent.sym_sizes() && !primal.is_inference();
}

} // namespace

at::Tensor wrap_argument(const at::Tensor& tensor) {
  const Layer& layer = entered_layer();
  const at::Tensor value = without_dead_wrappers(tensor);
  check_from_outside(value, layer);
  return wrap(value, layer, /*is_immutable=*/false);
}

at::Tensor fit_tangent(const at::Tensor& primal, const at::Tensor& tangent) {
  const bool are_of_no_level =
      holder_of(primal).is_same(primal) && holder_of(tangent).is_same(tangent);
  return are_of_no_level && fits(primal, tangent) && !is_laid_out_like(tangent, primal)
             ? copy_like(tangent, primal)
             : tangent;
}

at::Tensor make_dual(const at::Tensor& primal, const at::Tensor& tangent) {
  const Layer& layer = entered_layer();
  check_from_outside(primal, layer);
  check_from_outside(tangent, layer);
  const at::Tensor value = without_dead_wrappers(primal);
  if (!fits(value, tangent)) {
    return at::_make_dual(primal, tangent, kDualLevel);
  }
  at::Tensor fitting = tangent;
  if (!is_laid_out_like(tangent, value) || starts_elsewhere(tangent, value)) {
    // A copy can't have the layout of a primal whose elements share memory.
    if (value.is_conj() || value.is_neg() ||
        at::has_internal_overlap(holder_of(value)) == at::MemOverlap::No) {
      // torch would take the dual of a dual that is a part of memory, conjugated or negated for a
      // view whose tangent is not a view.
      fitting = unwrap(copy_like(tangent, value), layer.level());
    }
    if (!is_laid_out_like(fitting, value)) {
      return at::_make_dual(primal, tangent, kDualLevel);
    }
  }
  at::Tensor dual = wrap(value, layer, /*is_immutable=*/false);
  lend_tangent(dual, without_dead_wrappers(fitting));
  return dual;
}

std::pair<at::Tensor, at::Tensor> split_dual(const at::Tensor& given, int64_t level) {
  const at::Tensor dual = without_dead_wrappers(given);
  const auto* wrapper = wrapper_of(dual);
  // If other code holds the value too, another tensor is to be returned.
  if (wrapper != nullptr && wrapper->level() == level && wrapper->value().use_count() == 1) {
    return {wrapper->value(), tangent_of(dual, level)};
  }
  auto [primal, tangent] = at::_unpack_dual(dual, kDualLevel);
  return {unwrap(primal, level), tangent.defined() ? unwrap(tangent, level) : tangent};
}

std::vector<at::Tensor> vjp(
    const std::vector<at::Tensor>& outputs,
    const std::vector<at::Tensor>& inputs,
    const std::vector<at::Tensor>& cotangents,
    bool retain_graph,
    bool create_graph,
    bool in_layer) {
  auto* layer = in_layer ? dynamic_cast<GradLayer*>(&entered_layer()) : nullptr;
  TORCH_INTERNAL_ASSERT(layer != nullptr || !in_layer);
  InBackward phase(layer);
  std::optional<c10::InferenceMode> no_inference;
  without_inference(no_inference);
  if (auto found = vjp_below({outputs, inputs, cotangents, retain_graph, create_graph, layer})) {
    return std::move(*found);
  }
  trace_vjp("autograd", layer);
  std::vector<at::Tensor> given;
  for (size_t i = 0; i < cotangents.size(); ++i) {
    given.push_back(batched_like(cotangents[i], without_dead_wrappers(outputs[i])));
  }
  auto gradients = torch::autograd::grad(
      outputs, inputs, given, retain_graph, create_graph, /*allow_unused=*/true);
  for (size_t i = 0; i < inputs.size(); ++i) {
    gradients[i] = call_hooks_of_accumulated(inputs[i], std::move(gradients[i]));
  }
  return gradients;
}

at::Tensor add_batch_dim(const at::Tensor& tensor, int64_t dim) {
  const Layer& layer = entered_layer();
  TORCH_INTERNAL_ASSERT(layer.batch_size() != nullptr);
  check_from_outside(tensor, layer);
  return batched(tensor, c10::maybe_wrap_dim(dim, tensor.dim()), layer);
}

at::Tensor shown_at(const at::Tensor& tensor, int64_t level) {
  const Layer* layer = layer_at(level);
  const at::Tensor shown = layer != nullptr && layer->local_storages() != nullptr
                               ? layer->local_storages()->shown(tensor)
                               : at::Tensor();
  return shown.defined() ? shown : tensor;
}

at::Tensor shown(const at::Tensor& tensor) {
  auto keys = thread_keys();
  keys.set_excluded(keys.excluded() - kTorchFuncKeys);
  const c10::impl::ForceDispatchKeyGuard guard(keys);
  const auto* wrapper = wrapper_of(tensor);
  const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
  const int64_t own = wrapper != nullptr   ? wrapper->level().value_or(0)
                      : batched != nullptr ? batched->level()
                                           : 0;
  for (auto level = static_cast<int64_t>(mirror().size()); level > own; --level) {
    const at::Tensor found = shown_at(tensor, level);
    if (!found.is_same(tensor)) {
      return found;
    }
  }
  return tensor;
}

at::Tensor remove_batch_dim(
    const at::Tensor& given, int64_t level, const c10::SymInt& batch_size, int64_t out_dim) {
  const at::Tensor tensor = shown_at(without_dead_wrappers(given), level);
  const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
  if (const Layer* layer = layer_at(level)) {
    check_not_escaped(tensor, *layer);
  }
  const bool is_batched = batched && batched->level() == level;
  const int64_t dims = is_batched ? batched->value().dim() : tensor.dim() + 1;
  TORCH_CHECK_INDEX(
      out_dim >= -dims && out_dim < dims,
      "torchlayers: vmap (level ",
      level,
      "): out_dim ",
      out_dim,
      " is out of range for a result that has ",
      dims,
      " dimensions including the batch dimension: it must lie in [",
      -dims,
      ", ",
      dims - 1,
      "].");
  const int64_t place = out_dim < 0 ? out_dim + dims : out_dim;
  if (is_batched) {
    const at::Tensor& value = batched->value();
    return batched->bdim() == place ? value : value.movedim(batched->bdim(), place);
  }
  auto sizes = tensor.sym_sizes().vec();
  sizes.insert(sizes.begin() + place, batch_size);
  return tensor.unsqueeze(place).expand_symint(sizes);
}

} // namespace torchlayers
