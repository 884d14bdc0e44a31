#include "dispatch/decompose.h"

#include <optional>
#include <string>
#include <vector>

#include "core/args.h"
#include "core/aten_functions.h"
#include "core/errors.h"
#include "core/keys.h"
#include "core/stack.h"
#include "core/trace/trace.h"
#include "dispatch/fallbacks.h"
#include "rules/networks/ctc.h"
#include "values/functional.h"
#include "values/local_storages.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using at::Tensor;

bool is_of_samples(const Tensor& tensor) {
  return batched_levels(without_functional(without_dead_wrappers(tensor))).any();
}

// A single value for all positions may have another dtype, as torch allows if it knows the value.
bool is_to_be_cast(const Tensor& value, const Tensor& y) {
  return value.scalar_type() != y.scalar_type() && value.sym_numel() == 1 &&
         (y.is_complex() || !value.is_complex());
}

// A mask that is the only index, and the dimension that it is at.
struct Mask {
  Tensor tensor;
  int64_t at;
};

std::optional<Mask> mask_among(const c10::IValue& indices) {
  std::optional<Mask> mask;
  const auto list = indices.toListRef();
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].isTensor() && list[i].toTensor().defined()) {
      if (mask) {
        return std::nullopt;
      }
      mask = {list[i].toTensor(), static_cast<int64_t>(i)};
    }
  }
  return mask && mask->tensor.scalar_type() == at::kBool ? mask : std::nullopt;
}

bool fits(const Tensor& y, const Mask& mask) {
  bool fits = y.dim() >= mask.at + mask.tensor.dim();
  for (int64_t i = 0; fits && i < mask.tensor.dim(); ++i) {
    fits = mask.tensor.sym_size(i) == y.sym_size(mask.at + i);
  }
  return fits;
}

// The value; its dimension for the positions of the mask, if any, is replaced by the mask's
// dimensions.
std::optional<Tensor> value_at_places(const Tensor& value, const Tensor& y, const Mask& mask) {
  const int64_t behind = y.dim() - mask.at - mask.tensor.dim();
  const int64_t at = value.dim() - 1 - behind;
  if (at < 0) {
    return value;
  }
  if (value.sym_size(at) != 1) {
    return std::nullopt;
  }
  auto sizes = value.sym_sizes().vec();
  sizes.erase(sizes.begin() + at);
  sizes.insert(sizes.begin() + at, static_cast<size_t>(mask.tensor.dim()), c10::SymInt(1));
  return value.view_symint(sizes);
}

bool write_by_mask(const Operator& op, const Layer& layer, Args& args) {
  Tensor y = peek(args, 0, op.num_args).toTensor();
  const auto mask = mask_among(peek(args, 1, op.num_args));
  Tensor given = peek(args, 2, op.num_args).toTensor();
  // Sizes may be symbolic: don't query them where torch's operator does the job.
  const bool is_masked_of_samples = mask && is_of_samples(mask->tensor);
  const bool is_y_of_samples = is_of_samples(y);
  if (!mask || !(is_masked_of_samples || is_y_of_samples || is_of_samples(given)) ||
      !fits(y, *mask)) {
    return false;
  }
  const bool casts = is_to_be_cast(given, y);
  if (casts) {
    given = given.to(y.scalar_type());
  }
  const auto value = value_at_places(given, y, *mask);
  // torch's own rule reads the positions of a mask that samples share, which a fake tensor lacks.
  const bool takes_shared_mask = value && given.scalar_type() == y.scalar_type() &&
                                 (is_y_of_samples || op.written_args.empty());
  if (!is_masked_of_samples && !casts && !takes_shared_mask) {
    return false;
  }
  TORCH_CHECK_INDEX(
      given.scalar_type() == y.scalar_type(),
      "torchlayers: y[mask] = value needs a value of y's dtype, ",
      y.scalar_type(),
      ", but got ",
      given.scalar_type(),
      ".");
  if (!value) {
    raise_as(
        ErrorClass::BatchedOperator,
        "{} can't run y[mask] = value with a different mask for each sample and a value of {} "
        "elements, one per selected position: other samples select a different number of "
        "positions. Use y.masked_scatter_(mask, value), which uses as many elements as it needs, "
        "or torch.where(mask, value, y).",
        layer.name(),
        given.sym_size(given.dim() - 1 - (y.dim() - mask->at - mask->tensor.dim())));
  }
  trace("decompose", op, layer);
  Tensor places = mask->tensor;
  while (places.dim() < y.dim() - mask->at) {
    places = places.unsqueeze(-1);
  }
  const bool accumulates = peek(args, 3, op.num_args).toBool();
  Tensor result = accumulates ? y + at::where(places, *value, at::zeros({}, value->options()))
                              : at::where(places, *value, y);
  if (!op.written_args.empty()) {
    result = y.copy_(result);
  }
  drop(args, op.num_args);
  args.emplace_back(std::move(result));
  return true;
}

void front_of_index_put(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args) {
  const Layer* layer = layer_at_work();
  if (layer == nullptr || !write_by_mask(Operator::of(handle), *layer, *args)) {
    front(handle, keys, args);
  }
}

// The mean of the bounds, by which rrelu multiplies negative numbers in evaluation.
double mean_slope(const Operator& op, const Args& args) {
  const auto bound = [&](size_t i) { return peek(args, i, op.num_args).toScalar().toDouble(); };
  return (bound(2) + bound(3)) / 2;
}

// NOTE [Slopes of rrelu]
// rrelu draws slopes into its noise argument, which autograd has saved before the draw: whoever
// reads what was saved in between, as hooks do, finds memory without values, and torch's gradient
// of the functional form always does. And torch's kernel writes to the noise as if it were
// contiguous. So the operator draws for a tensor without a history and into a new, contiguous
// noise, and the result is the product of the tensor and the slopes. In evaluation it is
// leaky_relu.
void front_of_rrelu(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args) {
  static const c10::OperatorHandle drawing =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::rrelu_with_noise", "");
  const Operator& op = Operator::of(handle);
  const Layer* layer = layer_at_work();
  if (layer == nullptr) {
    front(handle, keys, args);
    return;
  }
  trace("decompose", op, *layer);
  Args draw = last(*args, op.num_args).vec();
  Tensor x = draw[0].toTensor();
  Tensor slopes = draw[1].toTensor();
  const bool draws = draw[4].toBool();
  const bool writes_noise = !op.written_args.empty();
  const bool is_in_place = writes_noise && op.written_args.front() == 0;
  drop(*args, op.num_args);
  if (!draws) {
    const double slope = mean_slope(op, draw);
    args->emplace_back(is_in_place ? at::leaky_relu_(x, slope) : at::leaky_relu(x, slope));
    slopes = writes_noise ? slopes : slopes.clone();
  } else {
    const Tensor detached = x.detach();
    const Tensor drawn = at::empty_like(detached, at::MemoryFormat::Contiguous);
    draw[0] = detached;
    draw[1] = drawn;
    front(drawing, keys, &draw);
    slopes = writes_noise ? slopes.copy_(drawn) : drawn;
    args->emplace_back(is_in_place ? x.mul_(slopes) : x * slopes);
  }
  if (!writes_noise) {
    args->emplace_back(slopes);
  }
}

// torch computes the loss in place, in the target's dtype, which integers don't fit. As fake
// tensors it gives an integer result, whose gradient would be zero.
void front_of_logits(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args) {
  const Operator& op = Operator::of(handle);
  const Tensor target = peek(*args, 1, op.num_args).toTensor();
  if (layer_at_work() != nullptr && at::isIntegralType(target.scalar_type(), true)) {
    const Tensor x = peek(*args, 0, op.num_args).toTensor();
    peek(*args, 1, op.num_args) = target.to(x.scalar_type());
  }
  front(handle, keys, args);
}

// one_hot(x, num_classes) of samples: torch's kernel asks them for their smallest and largest
// number.
void front_of_one_hot(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args) {
  const Operator& op = Operator::of(handle);
  const int64_t num_classes = peek(*args, 1, op.num_args).toInt();
  const Tensor x = peek(*args, 0, op.num_args).toTensor();
  const Layer* layer = layer_at_work();
  if (layer == nullptr || num_classes < 1 || x.scalar_type() != at::kLong || !is_of_samples(x)) {
    front(handle, keys, args);
    return;
  }
  trace("decompose", op, *layer);
  drop(*args, op.num_args);
  args->emplace_back((x.unsqueeze(-1) == at::arange(num_classes, x.options())).to(at::kLong));
}

// The second derivatives of torch's kernel are wrong, and those of its definition are right.
void front_of_weight_norm(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args) {
  const Operator& op = Operator::of(handle);
  const Layer* layer = layer_at_work();
  if (layer == nullptr) {
    front(handle, keys, args);
    return;
  }
  trace("decompose", op, *layer);
  const Tensor v = peek(*args, 0, op.num_args).toTensor();
  const Tensor g = peek(*args, 1, op.num_args).toTensor();
  const int64_t dim = peek(*args, 2, op.num_args).toInt();
  drop(*args, op.num_args);
  args->emplace_back(v * (g / at::norm_except_dim(v, 2, dim)));
}

// The same without a derivative: torch calls it for a weight that does not require grad itself,
// though a layer below may differentiate it.
void front_of_embedding_bag(
    const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args) {
  static const auto differentiable =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_embedding_bag", "");
  if (layer_at_work() == nullptr) {
    front(handle, keys, args);
    return;
  }
  differentiable.callBoxed(args);
}

// The mean of the losses of targets whose lengths are numbers. torch makes a tensor of those by
// writing to its memory, which a wrapper has none of.
void front_of_ctc_loss(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args) {
  const Operator& op = Operator::of(handle);
  const Layer* layer = layer_at_work();
  if (layer == nullptr || peek(*args, 5, op.num_args).toInt() != at::Reduction::Mean) {
    front(handle, keys, args);
    return;
  }
  trace("decompose", op, *layer);
  peek(*args, 5, op.num_args) = static_cast<int64_t>(at::Reduction::None);
  const c10::IValue lengths = peek(*args, 3, op.num_args);
  front(handle, keys, args);
  const Tensor losses = args->back().toTensor();
  args->back() = (losses / lengths_of(lengths, losses).clamp_min(1)).mean();
}

// The same memory as pairs of real numbers, or as complex ones; nothing for other dtypes.
std::optional<Tensor> view_as_pairs(const Tensor& x, at::ScalarType dtype) {
  const at::ScalarType from = x.scalar_type();
  auto sizes = x.sym_sizes().vec();
  if (from == dtype) {
    return x.view_symint(sizes);
  }
  if (sizes.empty() || x.is_conj() || x.is_neg()) {
    return std::nullopt;
  }
  if (at::isComplexType(from) && dtype == c10::toRealValueType(from)) {
    sizes.back() = sizes.back() * 2;
    return at::view_as_real(x).view_symint(sizes);
  }
  if (at::isComplexType(dtype) && from == c10::toRealValueType(dtype)) {
    sizes.back() = sizes.back() / 2;
    sizes.emplace_back(2);
    return at::view_as_complex(x.view_symint(sizes));
  }
  return std::nullopt;
}

// torch takes all views of other dtypes for constants, also those that have a derivative, and loses
// what is written through them.
void front_of_view(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args) {
  const Operator& op = Operator::of(handle);
  const Layer* layer = layer_at_work();
  const Tensor x = peek(*args, 0, op.num_args).toTensor();
  const auto dtype = peek(*args, 1, op.num_args).toScalarType();
  auto view = layer == nullptr ? std::nullopt : view_as_pairs(x, dtype);
  if (!view) {
    front(handle, keys, args);
    return;
  }
  trace("decompose", op, *layer);
  drop(*args, op.num_args);
  args->emplace_back(*std::move(view));
}

// torch has no functionalization kernel for it. Its gradient reads what x was before.
void front_of_polygamma(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args) {
  if (layer_at_work() == nullptr) {
    front(handle, keys, args);
    return;
  }
  const Operator& op = Operator::of(handle);
  const Tensor x = peek(*args, 0, op.num_args).toTensor();
  const int64_t order = peek(*args, 1, op.num_args).toInt();
  drop(*args, op.num_args);
  args->emplace_back(x.copy_(at::polygamma(order, x.clone())));
}

} // namespace

void register_taken_apart(torch::Library& on_front) {
  for (const char* name : {"index_put", "index_put_", "_index_put_impl_"}) {
    on_front.impl(name, torch::CppFunction::makeFromBoxedFunction<&front_of_index_put>());
  }
  on_front.impl(
      "binary_cross_entropy_with_logits",
      torch::CppFunction::makeFromBoxedFunction<&front_of_logits>());
  on_front.impl(
      "ctc_loss.IntList", torch::CppFunction::makeFromBoxedFunction<&front_of_ctc_loss>());
  on_front.impl("one_hot", torch::CppFunction::makeFromBoxedFunction<&front_of_one_hot>());
  on_front.impl("_weight_norm", torch::CppFunction::makeFromBoxedFunction<&front_of_weight_norm>());
  on_front.impl(
      "_embedding_bag_forward_only",
      torch::CppFunction::makeFromBoxedFunction<&front_of_embedding_bag>());
  on_front.impl("view.dtype", torch::CppFunction::makeFromBoxedFunction<&front_of_view>());
  on_front.impl("polygamma_", torch::CppFunction::makeFromBoxedFunction<&front_of_polygamma>());
  for (const char* name :
       {"rrelu_with_noise", "rrelu_with_noise_", "rrelu_with_noise_functional"}) {
    on_front.impl(name, torch::CppFunction::makeFromBoxedFunction<&front_of_rrelu>());
  }
}

} // namespace torchlayers
