#include "layers/vmap/draws.h"

#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "core/args.h"
#include "core/aten_functions.h"
#include "core/below.h"
#include "core/callbacks.h"
#include "core/device.h"
#include "layers/random/recorded_draws.h"
#include "layers/vmap/errors.h"

namespace torchlayers {
namespace {

using at::Tensor;

// Out-of-place forms of operators that fill a tensor, of which they use only the shape.
bool is_of_shape(const Operator& op) {
  constexpr std::array<std::string_view, 7> kNames{
      "aten::uniform",
      "aten::normal_functional",
      "aten::exponential",
      "aten::geometric",
      "aten::log_normal",
      "aten::cauchy",
      "aten::random"};
  const auto& name = op.handle.operator_name();
  return op.written_args.empty() && (std::ranges::find(kNames, name.name) != kNames.end() ||
                                     (name.name == "aten::bernoulli" && name.overload_name == "p"));
}

// Operators for which torch's rules make one draw for all samples.
bool is_right_in_torch(const Operator& op, size_t num_tensors) {
  const std::string_view name = op.handle.operator_name().name;
  return name == "aten::native_dropout" ||
         (num_tensors == 1 && (op.is_in_place || name.ends_with("_like")));
}

// torch's rule for it rejects every call.
bool is_rrelu(const Operator& op) {
  return op.handle.operator_name().name.starts_with("aten::rrelu_with_noise");
}

// Whether it would be called once for all samples, rejected, or run by torch's loop, which warns.
bool has_no_rule(const Operator& op) {
  return op.batching_rule == nullptr &&
         (is_rrelu(op) || (!op.handle.hasKernelForDispatchKey(DispatchKey::FuncTorchBatched) &&
                           !op.handle.hasKernelForDispatchKey(DispatchKey::FuncTorchVmapMode)));
}

bool takes_and_returns_tensors(const Operator& op) {
  const auto is_list = [](const c10::Argument& each) {
    return each.type()->kind() == c10::TypeKind::ListType &&
           each.type()->castRaw<c10::ListType>()->getElementType()->isSubtypeOf(
               *c10::OptionalType::ofTensor());
  };
  const auto is_tensor = [](const c10::Argument& each) {
    return each.type()->kind() == c10::TypeKind::TensorType;
  };
  const auto& schema = op.schema();
  return std::ranges::none_of(schema.arguments(), is_list) &&
         std::ranges::all_of(schema.returns(), is_tensor);
}

// Whether resetting generators does not reset the draws: a mode that records operators does not see
// it, and a function around that draws for this one has drawn already.
bool is_recorded() {
  const auto layers = layers_on_stack();
  const bool is_mode_on = c10::impl::TorchDispatchModeTLS::any_modes_set();
  return (is_mode_on && !draws_are_constants()) ||
         std::ranges::any_of(layers, [](const Layer* layer) {
           return dynamic_cast<const DrawnOutsideLayer*>(layer) != nullptr;
         });
}

// All sources that an operator called below a layer may draw from, in their state at construction.
class Sources {
 public:
  Sources(const Operator& op, const Args& args) {
    at::Device device(kHost);
    for (size_t i = 0; i < op.num_args; ++i) {
      const c10::IValue& value = peek(args, i, op.num_args);
      if (value.isGenerator()) {
        generator_ = value.toGenerator();
      }
    }
    visit_tensors(args, op.num_args, [&](const Tensor& tensor) {
      device = has_numbers(tensor) ? tensor.device() : device;
    });
    if (!generator_.defined()) {
      generator_ = at::globalContext().defaultGenerator(device);
    }
    const std::scoped_lock lock(generator_.mutex());
    state_ = generator_.get_state();
    for (Layer* layer : layers_on_stack()) {
      if (Draws* draws = draws_of(layer)) {
        counts_.emplace_back(draws, draws->count);
      }
    }
  }

  void set_back() {
    const std::scoped_lock lock(generator_.mutex());
    generator_.set_state(state_);
    for (const auto& [draws, count] : counts_) {
      draws->count = count;
    }
  }

 private:
  at::Generator generator_;
  Tensor state_;
  std::vector<std::pair<Draws*, int64_t>> counts_;
};

Args of_sample(const BatchedCall& call, int64_t sample) {
  return call.args_with([&](size_t i) {
    return call.is_batched(i) ? call.value(i).select(0, sample) : call.tensor(i);
  });
}

// The results of all samples, one after the other.
std::vector<Tensor> looped(
    const Operator& op, const Args& args, const BatchedCall& call, bool are_same) {
  Sources sources(op, args);
  std::vector<std::vector<Tensor>> results(op.num_returns);
  for (int64_t sample = 0; sample < call.count(); ++sample) {
    if (are_same && sample > 0) {
      sources.set_back();
    }
    auto of_this = call.call_all(of_sample(call, sample));
    for (size_t i = 0; i < results.size(); ++i) {
      results[i].push_back(std::move(of_this[i]));
    }
  }
  std::vector<Tensor> stacked;
  if (!op.is_in_place) {
    std::ranges::transform(
        results, std::back_inserter(stacked), [](const auto& each) { return at::stack(each); });
  }
  return stacked;
}

bool draw_one_by_one(const Operator& op, Args& args, BatchedCall& call, bool are_same) {
  const auto compute = [&] { return looped(op, args, call, are_same); };
  return op.is_in_place ? call.write(compute) : call.give(compute);
}

bool draw_same(
    const Operator& op, Args& args, BatchedCall& call, const VmapLayer& layer, size_t num_tensors) {
  if (!call.any_batched()) {
    // torch's rules for some of them call themselves again if there is another vmap below.
    const std::vector<bool> none_batched(op.num_returns, false);
    return call.give_some(
        none_batched, [&] { return call.call_all(last(args, op.num_args).vec()); });
  }
  if (is_right_in_torch(op, num_tensors)) {
    return false;
  }
  if (is_of_shape(op)) {
    return call.give_unbatched([&] { return call.call(of_sample(call, 0)); });
  }
  if (is_recorded() || !call.is_batch_size_known()) {
    return callbacks.draw(op, args, layer.name(), [&] {
      const Below below(layer, op);
      return at::empty({}, at::device(kHost).dtype(at::kLong)).random_();
    });
  }
  return draw_one_by_one(op, args, call, /*are_same=*/true);
}

bool draw_different(const Operator& op, Args& args, BatchedCall& call, size_t num_tensors) {
  // torch's rule for bernoulli_ calls itself again if there is another vmap below.
  if (op.is_in_place && num_tensors == 1 && call.is_batched(0)) {
    return call.write(
        [&] { call.call_all(call.args_with([&](size_t i) { return call.value(i); })); });
  }
  if (is_of_shape(op)) {
    return call.give(
        [&] { return call.call(call.args_with([&](size_t i) { return call.expanded(i); })); });
  }
  return has_no_rule(op) && call.is_batch_size_known() && (!op.is_in_place || call.is_batched(0)) &&
         draw_one_by_one(op, args, call, /*are_same=*/false);
}

} // namespace

bool& draws_are_constants() {
  thread_local bool are_constants = false;
  return are_constants;
}

bool draw(const Operator& op, Args& args, BatchedCall& call, const VmapLayer& layer) {
  size_t num_tensors = 0;
  visit_tensors(args, op.num_args, [&](const Tensor&) { ++num_tensors; });
  if (num_tensors == 0 || op.is_composite || !call.is_strided() || !takes_and_returns_tensors(op)) {
    return false;
  }
  switch (layer.randomness()) {
    case Randomness::Same:
      return draw_same(op, args, call, layer, num_tensors);
    case Randomness::Different:
      return draw_different(op, args, call, num_tensors);
    default:
      if (is_of_shape(op) || is_rrelu(op)) {
        refuse_to_draw(op, layer);
      }
      return false;
  }
}

} // namespace torchlayers
