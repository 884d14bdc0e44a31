// Convolutions: bilinear, with a bias.
#include "families.h"
#include "forms.h"

namespace torchlayers {
namespace {

using at::Tensor;

// One for each channel, along the dimension after the batch's.
Tensor along_channels(const Tensor& bias, const Tensor& result) {
  c10::SymDimVector sizes(result.dim(), 1);
  sizes[1] = bias.sym_size(0);
  return bias.reshape_symint(sizes);
}

void convolution(Call& call) {
  call.run();
  // The bias goes with the first term.
  c10::IValue bias = call.has_tangent(2) ? c10::IValue(call.tangent(2)) : c10::IValue();
  Tensor sum;
  for (size_t arg : {0, 1}) {
    if (call.has_tangent(arg)) {
      sum = sum_of({sum, call.with({{arg, call.tangent(arg)}, {2, std::exchange(bias, {})}})});
    }
  }
  call.set_tangent(0, sum.defined() ? sum : along_channels(call.tangent(2), call.result()));
}

// convolution_backward(g, input, weight, bias_sizes, …, output_mask) -> the gradients of
// input, weight and bias.
void convolution_backward(Call& call) {
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

void pull_convolution(Pullback& call) {
  const std::array<bool, 3> mask{call.wants(0), call.wants(1), call.wants(2)};
  const auto [input, weight, bias] = at::convolution_backward_symint(
      call.cotangents()[0],
      call[0],
      call[1],
      mask[2] ? at::OptionalSymIntArrayRef(call.sizes_of(2)) : std::nullopt,
      call.sizes(3),
      call.sizes(4),
      call.sizes(5),
      call.flag(6),
      call.sizes(7),
      call.size(8),
      mask);
  call.give(0, input);
  call.give(1, weight);
  call.give(2, bias);
}

} // namespace

void add_convolutions(Table& rules) {
  WRITTEN("convolution", convolution);
  rules.add_pull(
      "convolution",
      std::make_unique<AtOnce>(
          std::vector<size_t>{0, 1, 2}, std::vector<size_t>{0}, Reads{0b11, 0}, pull_convolution));
  WRITTEN("_convolution", convolution);
  WRITTEN("convolution_backward", convolution_backward);
}

} // namespace torchlayers
