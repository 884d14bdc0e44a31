// Operators that csrc/rules lacks, because layers meet others in their place, and moves of elements
// that depend on a number of dimensions.
#include "graph/rules/rules.h"

namespace torchlayers::graph {

namespace {

std::vector<Derivative> convolution(const std::string& geometry) {
  return {
      {"input, weight, bias",
       "conv_backward(grad, input, weight, " + geometry +
           ", groups, [input_needed, weight_needed, bias_needed])"}};
}

std::vector<Derivative> batch_norm(const std::string& statistics) {
  return {
      {"input, weight, bias",
       "batch_norm_backward(grad, input, weight, running_mean, running_var, " + statistics +
           ", training, eps, [input_needed, weight_needed, bias_needed])"}};
}

const char* const kConv = "stride, padding, dilation, False, [0]";
const char* const kConvTransposed = "stride, padding, dilation, True, output_padding";

} // namespace

GraphRules composite_rules() {
  return {
      {"aten::square", {{"self", "grad * 2 * self"}}},
      {"aten::sign", {{"self", "torch.zeros_like(grad)"}}},
      {"aten::sgn", {{"self", "torch.zeros_like(grad)"}}},
      {"aten::to.dtype", {{"self", "converted(grad, self_device, self_dtype, dtype)"}}},
      {"aten::to.device", {{"self", "converted(grad, self_device, self_dtype, dtype)"}}},
      {"aten::to.other", {{"self", "converted(grad, self_device, self_dtype, result_dtype)"}}},
      {"aten::type_as", {{"self", "converted(grad, self_device, self_dtype, result_dtype)"}}},
      // torch's formula has a hundred nodes to determine which operands are vectors.
      {"aten::matmul",
       {{"self", "torchlayers.matmul_backward_self(grad, other, self_size)"},
        {"other", "torchlayers.matmul_backward_other(grad, self, other_size)"}}},
      {"aten::linalg_inv", {{"A", "-result.mT.matmul(grad).matmul(result.mT)"}}},
      // `reduction` is encoded as in torch: 0 none, 1 mean, 2 sum.
      {"aten::l1_loss",
       {{"self", "mean_or_sum(grad, self_size, reduction) * (self - target).sgn()"},
        {"target", "mean_or_sum(grad, self_size, reduction) * (target - self).sgn()"}}},
      // Its weight is often an Optional, of which a line would have to know whether it is None.
      {"aten::binary_cross_entropy",
       {{"self", "torch.binary_cross_entropy_backward(grad, self, target, weight, reduction)"},
        {"target",
         "weighted(mean_or_sum(grad, self_size, reduction) * "
         "((1 - self).log().clamp_min(-100) - self.log().clamp_min(-100)), weight)"},
        {"weight",
         "torch._grad_sum_to_size(mean_or_sum(grad, self_size, reduction) * "
         "torch.binary_cross_entropy(self, target, None, 0), weight_size)"}}},
      {"aten::nll_loss",
       {},
       "result, total = torch.nll_loss_forward(self, target, weight, reduction, ignore_index)"},
      {"aten::conv1d", convolution(kConv)},
      {"aten::conv2d", convolution(kConv)},
      {"aten::conv3d", convolution(kConv)},
      {"aten::conv_transpose1d", convolution(kConvTransposed)},
      {"aten::conv_transpose2d.input", convolution(kConvTransposed)},
      {"aten::conv_transpose3d.input", convolution(kConvTransposed)},
      {"aten::convolution", convolution("stride, padding, dilation, transposed, output_padding")},
      {"aten::_convolution", convolution("stride, padding, dilation, transposed, output_padding")},
      {"aten::_slow_conv2d_forward",
       {{"self, weight, bias",
         "conv_backward(grad, self, weight, stride, padding, [1, 1], False, [0, 0], 1, "
         "[self_needed, weight_needed, bias_needed])"}}},
      {"aten::native_batch_norm", batch_norm("result1, result2")},
      {"aten::batch_norm",
       batch_norm("mean, invstd"),
       "result, mean, invstd = torch.native_batch_norm(input, weight, bias, running_mean, "
       "running_var, training, momentum, eps)"},
      {"aten::layer_norm",
       {},
       "result, mean, rstd = torch.native_layer_norm(input, normalized_shape, weight, bias, eps)"},
      {"aten::dropout",
       {{"input",
         "torch.native_dropout_backward(grad, mask, "
         "(0.0 if p == 1.0 else 1.0 / (1.0 - p)) if train else 1.0)"}},
       "result, mask = torch.native_dropout(input, p, train)"},
      {"aten::log_sigmoid", {}, "result, buffer = torch.log_sigmoid_forward(self)"},
      {"aten::max_pool2d",
       {},
       "result, indices = torch.max_pool2d_with_indices(self, kernel_size, stride, padding, "
       "dilation, ceil_mode)"},
      {"aten::max_pool3d",
       {},
       "result, indices = torch.max_pool3d_with_indices(self, kernel_size, stride, padding, "
       "dilation, ceil_mode)"},
      {"aten::narrow",
       {{"self", "torch.slice_backward(grad, self_size, dim, start, start + length, 1)"}}},
      {"aten::scatter.src",
       {{"self", "grad.scatter(dim, index, 0)"}, {"src", "grad.gather(dim, index)"}}},
      {"aten::scatter_add", {{"self", "grad"}, {"src", "grad.gather(dim, index)"}}},
      // csrc/rules has a line for it, but its gradient is never sparse.
      {"aten::gather", {{"self", "torch.gather_backward(grad, self, dim, index, sparse_grad)"}}},
      {"aten::numpy_T", {{"self", "grad.t()"}}},
      {"aten::mT", {{"self", "grad.transpose(-2, -1)"}}},
      {"aten::mH", {{"self", "grad.transpose(-2, -1)"}}},
      {"aten::repeat_interleave.self_int",
       {{"self", "each_repeated(grad, self_size, repeats, dim)"}}},
      {"aten::movedim.int", {{"self", "torch.movedim(grad, destination, source)"}}},
      {"aten::movedim.intlist", {{"self", "torch.movedim(grad, destination, source)"}}},
      {"aten::repeat", {{"self", "unrepeated(grad, self_size, repeats)"}}},
  };
}

} // namespace torchlayers::graph
