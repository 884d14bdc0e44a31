#include "rules/batching/pointwise.h"

#include <ATen/ExpandUtils.h>
#include <ATen/native/TypeProperties.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "rules/batching/families.h"

namespace torchlayers {

bool run_batched_alike(BatchedCall& call) {
  return call.op().is_pointwise && call.alike().holds() && call.run_alike();
}

namespace {

// The ranks, sizes and dtypes of a pointwise operator's tensors, compared with each other.
struct Samples {
  int64_t rank = 0; // the largest
  bool any_batched = false;
  bool any_batched_number = false; // a batched tensor whose samples have no dimensions
  bool mixes_dtypes = false;
  bool is_lined_up = true;   // once the batch dimension is in front
  bool has_one_shape = true; // and all are batched

  explicit Samples(const BatchedCall& call) {
    for (size_t i = 0; i < call.size(); ++i) {
      if (call.has_tensor(i)) {
        rank = std::max(rank, call.rank(i));
      }
    }
    std::optional<at::ScalarType> dtype;
    std::optional<c10::SymIntArrayRef> sizes;
    for (size_t i = 0; i < call.size(); ++i) {
      if (call.has_tensor(i)) {
        const at::Tensor& tensor = call.tensor(i);
        const bool is_batched = call.is_batched(i);
        any_batched = any_batched || is_batched;
        is_lined_up = is_lined_up && (!is_batched || tensor.dim() == rank);
        has_one_shape =
            has_one_shape && is_batched && sizes.value_or(tensor.sym_sizes()) == tensor.sym_sizes();
        sizes = tensor.sym_sizes();
        if (!tensor.unsafeGetTensorImpl()->is_wrapped_number()) { // takes any dtype
          any_batched_number = any_batched_number || (is_batched && tensor.dim() == 0);
          mixes_dtypes =
              mixes_dtypes || dtype.value_or(tensor.scalar_type()) != tensor.scalar_type();
          dtype = tensor.scalar_type();
        }
      }
    }
  }
};

// The sizes that the samples broadcast to, after the batch size.
at::SymDimVector broadcast_sizes(const BatchedCall& call) {
  at::SymDimVector sizes;
  for (size_t i = 0; i < call.size(); ++i) {
    if (call.has_tensor(i)) {
      sizes = at::infer_size_symdimvector(sizes, call.tensor(i).sym_sizes());
    }
  }
  sizes.insert(sizes.begin(), call.batch_size());
  return sizes;
}

// The argument, with the batch dimension in front of `rank` others if it is batched.
at::Tensor lined_up(const BatchedCall& call, size_t i, int64_t rank) {
  return call.is_batched(i) ? BatchedCall::raised(call.value(i), rank) : call.tensor(i);
}

// The first of the tensors that an operator promotes to one dtype, if torch's batching rule leaves
// that to the kernel, for which a sample without dimensions has one, and counts for more.
std::optional<size_t> first_promoted(const Operator& op) {
  const std::string_view name = op.handle.operator_name().name;
  if (name == "aten::where") {
    return 1; // after the condition
  }
  constexpr std::array<std::string_view, 10> kAll{
      "aten::lerp",
      "aten::clamp",
      "aten::addcmul",
      "aten::addcdiv",
      "aten::eq",
      "aten::ne",
      "aten::lt",
      "aten::le",
      "aten::gt",
      "aten::ge"};
  const bool is_one = std::find(kAll.begin(), kAll.end(), name) != kAll.end();
  return is_one ? std::optional<size_t>(0) : std::nullopt;
}

// lerp promotes the dtype of a weight without dimensions only; else it requires one dtype.
bool refuses_dtypes(const BatchedCall& call) {
  if (call.op().handle.operator_name().name != "aten::lerp") {
    return false;
  }
  const auto dtype_of = [&](size_t i) { return call.tensor(i).scalar_type(); };
  const bool is_weight_taken =
      !call.has_tensor(2) || call.tensor(2).dim() == 0 || dtype_of(2) == dtype_of(0);
  return dtype_of(0) != dtype_of(1) || !is_weight_taken;
}

// Runs the operator on tensors of the dtype to which it promotes those of a sample.
bool run_promoted(BatchedCall& call, int64_t rank) {
  const auto first = first_promoted(call.op());
  if (!first || refuses_dtypes(call)) {
    return false;
  }
  at::native::ResultTypeState state = {};
  for (size_t i = *first; i < call.size(); ++i) {
    if (call.has_tensor(i)) {
      state = at::native::update_result_type_state(call.tensor(i), state);
    }
  }
  const auto dtype = at::native::result_type(state);
  return call.give([&] {
    return call.call(call.args_with([&](size_t i) {
      const at::Tensor value = lined_up(call, i, rank);
      return i < *first ? value : value.to(dtype);
    }));
  });
}

} // namespace

bool line_up(BatchedCall& call, size_t has_one_shape) {
  const Samples samples(call);
  if (!samples.any_batched) {
    return false;
  }
  if (samples.any_batched_number && samples.mixes_dtypes) {
    return run_promoted(call, samples.rank);
  }
  if (has_one_shape != 0 ? samples.has_one_shape : samples.is_lined_up) {
    return call.run();
  }
  const auto sizes = has_one_shape != 0 ? broadcast_sizes(call) : at::SymDimVector();
  return call.give([&] {
    return call.call(call.args_with([&](size_t i) {
      const at::Tensor value = lined_up(call, i, samples.rank);
      return has_one_shape != 0 ? value.expand_symint(sizes) : value;
    }));
  });
}

namespace {

// log_sigmoid_backward(gradient, x, buffer), whose buffer is empty on devices that need none.
bool log_sigmoid_backward(BatchedCall& call, size_t) {
  const bool needs_buffer = call.tensor(2).sym_numel() != 0 || call.tensor(1).sym_numel() == 0;
  return needs_buffer && line_up(call, /*has_one_shape=*/1);
}

} // namespace

void add_batched_pointwise(BatchingTable& rules) {
  // torch does not tag these as pointwise, or they have a kernel composed of others beside their
  // own.
  rules.add(
      {"elu_backward",
       "hardshrink_backward",
       "hardsigmoid_backward",
       "hardswish_backward",
       "hardtanh_backward",
       "leaky_relu_backward",
       "mish_backward",
       "silu_backward",
       "softplus_backward",
       "softshrink_backward"},
      {line_up});
  // oneDNN does not broadcast, and the other drops an operand that it does not need.
  rules.add({"gelu_backward", "rrelu_with_noise_backward"}, {line_up, /*has_one_shape=*/1});
  rules.add({"log_sigmoid_backward"}, {log_sigmoid_backward});
}

} // namespace torchlayers
