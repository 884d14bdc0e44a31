#include "layers/vmap/no_samples.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

#include "core/args.h"
#include "layers/vmap/example_sample.h"
#include "rules/batching/batched_call.h"

namespace torchlayers {
namespace {

using at::Tensor;

// Whether the shapes and dtypes of its results tell everything that it does to an empty batch.
bool only_computes(const Operator& op, const BatchedCall& call, const VmapLayer& layer) {
  const auto& arguments = op.schema().arguments();
  const auto names_device = [](const c10::Argument& argument) {
    return argument.name() == "device";
  };
  const bool writes_to_samples =
      std::all_of(op.written_args.begin(), op.written_args.end(), [&](size_t i) {
        return call.is_batched(i) && !op.aliased_result[i];
      });
  const bool may_draw =
      layer.draws_for_each() ||
      !op.handle.hasKernelForDispatchKey(DispatchKey::FuncTorchVmapMode); // which rejects it
  return writes_to_samples && may_draw && !op.is_custom && !op.is_collective && !op.reads_number &&
         !op.detaches && !op.makes_dual && !op.unpacks_dual && !op.always_wraps &&
         !op.handle.hasTag(at::Tag::dynamic_output_shape) &&
         !op.handle.hasTag(at::Tag::data_dependent_output) &&
         std::none_of(arguments.begin(), arguments.end(), names_device);
}

bool takes_generator(const Operator& op, const Args& args) {
  return std::ranges::any_of(
      last(args, op.num_args), [](const c10::IValue& value) { return value.isGenerator(); });
}

bool has_derivatives(const Tensor& tensor) {
  return tensor.is_floating_point() || tensor.is_complex();
}

// Zero, with the arguments as its history: the sum of none of their elements.
Tensor nothing_of(const std::vector<Tensor>& arguments) {
  Tensor nothing;
  for (const Tensor& argument : arguments) {
    const Tensor none = argument.flatten().narrow(0, 0, 0).sum();
    nothing = nothing.defined() ? nothing + none : none;
  }
  return nothing;
}

// An empty batch of samples like this one.
Tensor none_like(const Tensor& sample, const Tensor& value, const Tensor& nothing) {
  at::DimVector sizes(sample.sizes());
  sizes.insert(sizes.begin(), 0);
  const Tensor empty = value.new_empty(sizes, sample.scalar_type());
  if (!nothing.defined() || !has_derivatives(empty)) {
    return empty;
  }
  return empty + (empty.is_complex() ? nothing : at::real(nothing));
}

// Restores the CPU generator at the end of its life, so that later code repeats the draws.
class DrawsBack {
 public:
  DrawsBack() : generator_(at::detail::getDefaultCPUGenerator()), state_(generator_.get_state()) {}
  ~DrawsBack() {
    generator_.set_state(state_);
  }
  DrawsBack(const DrawsBack&) = delete;
  DrawsBack& operator=(const DrawsBack&) = delete;

 private:
  at::Generator generator_;
  Tensor state_;
};

std::optional<Args> results_of_sample(const Operator& op, const Args& args) {
  std::optional<DrawsBack> draws_back;
  if (op.is_random) {
    draws_back.emplace();
  }
  for (const int64_t number : {0, 1}) { // operators that count from one, or divide, reject zeros
    try {
      return run_on_stand_in(op, args, number);
    } catch (const c10::Error&) {
      if (op.aliases && op.written_args.empty()) { // views depend on shapes alone, and reject those
        throw;
      }
    }
  }
  return std::nullopt;
}

} // namespace

bool run_on_no_samples(
    const Operator& op, const Args& args, BatchedCall& call, const VmapLayer& layer) {
  if (!call.is_strided() || call.batch_size() != 0 || !call.any_batched() ||
      !only_computes(op, call, layer) || takes_generator(op, args)) {
    return false;
  }
  const auto sample = results_of_sample(op, args);
  if (!sample) {
    return false;
  }
  std::vector<Tensor> given;
  Tensor batched;
  visit_tensors(args, op.num_args, [&](const Tensor& tensor) {
    if (call.is_batched(tensor)) {
      batched = tensor;
    }
    if (!op.is_constant && has_derivatives(tensor)) {
      given.push_back(tensor);
    }
  });
  const auto none_of = [&](const std::vector<Tensor>& samples) {
    const Tensor value = call.value(batched);
    std::vector<Tensor> values;
    for (const Tensor& each : given) {
      values.push_back(call.value(each));
    }
    const Tensor nothing = nothing_of(values);
    std::vector<Tensor> results;
    for (const Tensor& each : samples) {
      results.push_back(each.defined() ? none_like(each, value, nothing) : each);
    }
    return results;
  };
  if (sample->size() == 1 && (*sample)[0].isTensorList()) {
    const auto samples = (*sample)[0].toTensorVector();
    const std::vector<bool> all(samples.size(), true);
    return call.give_list(all, [&] { return none_of(samples); });
  }
  std::vector<Tensor> samples;
  for (const c10::IValue& result : *sample) {
    if (!result.isTensor()) {
      return false;
    }
    samples.push_back(result.toTensor());
  }
  return call.give([&] { return none_of(samples); });
}

} // namespace torchlayers
