// Activations, pooling, padding and normalisation.
#include "graph/rules.h"

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

GraphRules neural_rules() {
  return {
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
      {"aten::native_layer_norm",
       {{"input, weight, bias",
         "torch.native_layer_norm_backward(grad, input, normalized_shape, result1, result2, "
         "weight, bias, [input_needed, weight_needed, bias_needed])"}}},
      {"aten::layer_norm",
       {{"input, weight, bias",
         "torch.native_layer_norm_backward(grad, input, normalized_shape, mean, rstd, weight, "
         "bias, [input_needed, weight_needed, bias_needed])"}},
       "result, mean, rstd = torch.native_layer_norm(input, normalized_shape, weight, bias, eps)"},
      {"aten::dropout",
       {{"input",
         "torch.native_dropout_backward(grad, mask, "
         "(0.0 if p == 1.0 else 1.0 / (1.0 - p)) if train else 1.0)"}},
       "result, mask = torch.native_dropout(input, p, train)"},
      // torch's own formulas ignore the approximation, and the threshold.
      {"aten::gelu", {{"self", "torch.gelu_backward(grad, self, approximate=approximate)"}}},
      {"aten::celu", {{"self", "torch.elu_backward(grad, alpha, 1.0, 1.0 / alpha, False, self)"}}},
      {"aten::selu",
       {{"self",
         "torch.elu_backward(grad, 1.6732632423543772, 1.0507009873554805, 1.0, False, self)"}}},
      {"aten::log_sigmoid", {{"self", "grad * torch.sigmoid(-self)"}}},
      {"aten::mish", {{"self", "torch.mish_backward(grad, self)"}}},
      {"aten::logit", {{"self", "torch.logit_backward(grad, self, eps)"}}},
      {"aten::avg_pool2d",
       {{"self",
         "torch.avg_pool2d_backward(grad, self, kernel_size, stride, padding, ceil_mode, "
         "count_include_pad, divisor_override)"}}},
      {"aten::avg_pool3d",
       {{"self",
         "torch.avg_pool3d_backward(grad, self, kernel_size, stride, padding, ceil_mode, "
         "count_include_pad, divisor_override)"}}},
      {"aten::max_pool2d",
       {{"self",
         "torch.max_pool2d_with_indices_backward(grad, self, kernel_size, stride, padding, "
         "dilation, ceil_mode, indices)"}},
       "result, indices = torch.max_pool2d_with_indices(self, kernel_size, stride, padding, "
       "dilation, ceil_mode)"},
      {"aten::max_pool3d",
       {{"self",
         "torch.max_pool3d_with_indices_backward(grad, self, kernel_size, stride, padding, "
         "dilation, ceil_mode, indices)"}},
       "result, indices = torch.max_pool3d_with_indices(self, kernel_size, stride, padding, "
       "dilation, ceil_mode)"},
  };
}

} // namespace torchlayers::graph
