#include <string>
#include <vector>

#include "core/args.h"
#include "core/aten_functions.h"
#include "core/stack.h"
#include "core/trace/trace.h"
#include "dispatch/decompose.h"
#include "dispatch/fallbacks.h"
#include "values/local_storages.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using at::Tensor;

bool follows(const Layer& layer, const Tensor& given) {
  const Tensor tensor = without_dead_wrappers(given);
  return layer.follows(tensor) ||
         (layer.local_storages() != nullptr && layer.local_storages()->has_written(tensor));
}

// Scales in a tensor, one for each member of the lists; torch's own loop would read its memory.
bool scale_each(const Operator& op, Args& args) {
  const auto& name = op.handle.operator_name();
  const bool divides = name.name.find("addcdiv") != std::string::npos;
  if (name.overload_name != "Tensor" ||
      (!divides && name.name.find("addcmul") == std::string::npos)) {
    return false;
  }
  const std::vector<Tensor> to = peek(args, 0, op.num_args).toTensorVector();
  const std::vector<Tensor> one = peek(args, 1, op.num_args).toTensorVector();
  const std::vector<Tensor> other = peek(args, 2, op.num_args).toTensorVector();
  const Tensor scales = peek(args, 3, op.num_args).toTensor();
  TORCH_CHECK(
      one.size() == to.size() && other.size() == to.size() && scales.dim() == 1 &&
          scales.size(0) == static_cast<int64_t>(to.size()),
      "torchlayers: ",
      op.name(),
      " takes lists of equal length, and one scale per member.");
  std::vector<Tensor> results;
  for (size_t i = 0; i < to.size(); ++i) {
    const Tensor scale = scales.select(0, static_cast<int64_t>(i));
    const Tensor change = scale * (divides ? one[i] / other[i] : one[i] * other[i]);
    Tensor result = to[i];
    results.push_back(op.written_args.empty() ? result.add(change) : result.add_(change));
  }
  drop(args, op.num_args);
  if (op.num_returns == 1) {
    args.emplace_back(std::move(results));
  }
  return true;
}

void front_of_lists(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args) {
  const Operator& op = Operator::of(handle);
  const Layer* layer = layer_at_work();
  // Other layers, such as functionalize, handle lists themselves.
  const bool is_ours = layer != nullptr && (layer->is_autograd() || layer->batch_size() != nullptr);
  const bool is_followed = is_ours && any_tensor(*args, op.num_args, [&](const Tensor& x) {
                             return follows(*layer, x);
                           });
  if (!is_followed) {
    front(handle, keys, args);
    return;
  }
  trace("decompose", op, *layer);
  if (!scale_each(op, *args)) {
    handle.redispatchBoxed(DispatchKeySet(), args); // torch's loop, for any backend
  }
}

} // namespace

void register_lists(torch::Library& on_front) {
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.getNamespace() == "aten" && name.name.find("::_foreach_") != std::string::npos) {
      on_front.impl(
          c10::toString(name).c_str(),
          torch::CppFunction::makeFromBoxedFunction<&front_of_lists>());
    }
  }
}

} // namespace torchlayers
