// Convolutions: bilinear in input and weight, with a bias.
#include "rules/families.h"
#include "rules/networks/parameters.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

void convolution(JvpCall& call) {
  call.run();
  // The bias goes with the first term.
  c10::IValue bias = call.has_tangent(2) ? c10::IValue(call.tangent(2)) : c10::IValue();
  Tensor sum;
  for (size_t arg : {0, 1}) {
    if (call.has_tangent(arg)) {
      sum = sum_of({sum, call.with({{arg, call.tangent(arg)}, {2, std::exchange(bias, {})}})});
    }
  }
  call.set_tangent(0, sum.defined() ? sum : along_channels(call.tangent(2), call.result().dim()));
}

// convolution_backward(g, input, weight, bias_sizes, …, output_mask) -> the gradients of
// input, weight and bias.
void convolution_backward(JvpCall& call) {
  call.run();
  const size_t mask_place = call.op().num_args - 1;
  const auto mask = call.arg(mask_place).toBoolList();
  std::array<Tensor, 3> sums;
  const auto add = [&](size_t arg, bool input, bool weight, bool bias) {
    const c10::List<bool> wanted({input && mask[0], weight && mask[1], bias && mask[2]});
    if (!call.has_tangent(arg) || !(wanted[0] || wanted[1] || wanted[2])) {
      return;
    }
    const Args terms = call.all_with({{arg, call.tangent(arg)}, {mask_place, wanted}});
    for (size_t i = 0; i < 3; ++i) {
      if (wanted[i]) {
        sums[i] = sum_of({sums[i], terms[i].toTensor()});
      }
    }
  };
  add(0, true, true, true);
  add(1, false, true, false);
  add(2, true, false, false);
  for (size_t i = 0; i < 3; ++i) {
    call.set_tangent(i, sums[i]);
  }
}

void convolution_vjp(VjpCall& call) {
  const std::array<bool, 3> mask{call.wants(0), call.wants(1), call.wants(2)};
  // torch's second derivative of a transposed convolution has others with its output padding, which
  // they ignore and their gradient rejects.
  std::vector<c10::SymInt> output_padding = call.sizes(7);
  if (!call.flag(6)) {
    output_padding.assign(output_padding.size(), 0);
  }
  give_each(
      call,
      {0, 1, 2},
      at::convolution_backward_symint(
          call.cotangents()[0],
          call[0],
          call[1],
          mask[2] ? at::OptionalSymIntArrayRef(call.sizes_of(2)) : std::nullopt,
          call.sizes(3),
          call.sizes(4),
          call.sizes(5),
          call.flag(6),
          output_padding,
          call.size(8),
          mask));
}

void convolution_backward_vjp(VjpCall& call) {
  const auto mask = call.arg(10).toBoolList();
  std::array<std::optional<Tensor>, 3> cotangents; // a result that was not requested has none
  size_t place = 0;
  for (size_t i = 0; i < 3; ++i) {
    if (mask[i] && call.cotangents()[place++].defined()) {
      cotangents[i] = call.cotangents()[place - 1];
    }
  }
  give_each(
      call,
      {0, 1, 2},
      at::_convolution_double_backward_symint(
          cotangents[0],
          cotangents[1],
          cotangents[2],
          call[0],
          call[2],
          call[1],
          call.sizes(4),
          call.sizes(5),
          call.sizes(6),
          call.flag(7),
          call.sizes(8),
          call.size(9),
          {call.wants(0), call.wants(1), call.wants(2)}));
}

} // namespace

void add_convolutions(Table& rules) {
  rules["convolution"]
      .jvp(convolution)
      .vjp(convolution_vjp, {.by = {"input", "weight", "bias"}, .saves = {"input", "weight"}});
  rules["_convolution"].jvp(convolution);
  rules["convolution_backward"]
      .jvp(convolution_backward)
      .vjp(
          convolution_backward_vjp,
          {.by = {"grad_output", "input", "weight"},
           .of = {"result", "result1", "result2"},
           .saves = {"grad_output", "input", "weight"}});
}

} // namespace torchlayers
