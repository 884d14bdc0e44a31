// Functions of each element, and of the elements of two broadcast together.
#include "core/torch_versions.h"
#include "graph/rules.h"

namespace torchlayers::graph {

namespace {

Rule binary(const std::string& op, const std::string& self, const std::string& other) {
  return {
      op,
      {{"self", "torch._grad_sum_to_size(" + self + ", self_reduced)"},
       {"other", "torch._grad_sum_to_size(" + other + ", other_reduced)"}}};
}

Rule unary(const std::string& op, const std::string& gradient) {
  return {op, {{"self", gradient}}};
}

} // namespace

Rules elementwise_rules() {
  return {
      // Ties share the gradient, as autograd's do.
      binary(
          "aten::maximum",
          "grad * ((self > other).to(grad) + 0.5 * (self == other).to(grad))",
          "grad * ((other > self).to(grad) + 0.5 * (self == other).to(grad))"),
      binary(
          "aten::minimum",
          "grad * ((self < other).to(grad) + 0.5 * (self == other).to(grad))",
          "grad * ((other < self).to(grad) + 0.5 * (self == other).to(grad))"),
      binary(
          "aten::max.other",
          "grad * ((self > other).to(grad) + 0.5 * (self == other).to(grad))",
          "grad * ((other > self).to(grad) + 0.5 * (self == other).to(grad))"),
      binary(
          "aten::min.other",
          "grad * ((self < other).to(grad) + 0.5 * (self == other).to(grad))",
          "grad * ((other < self).to(grad) + 0.5 * (self == other).to(grad))"),
      binary(
          "aten::atan2",
          "grad * other / (self * self + other * other)",
          "grad * -self / (self * self + other * other)"),
      binary("aten::hypot", "grad * self / result", "grad * other / result"),
      binary(
          "aten::logaddexp",
          "grad * torch.sigmoid(self - other)",
          "grad * torch.sigmoid(other - self)"),
      binary(
          "aten::xlogy.Tensor",
          "grad * torch.log(other).masked_fill(torch.logical_and(self == 0, other <= 0), 0.0)",
          "grad * self / other"),
      unary("aten::square", "grad * 2 * self"),
      unary("aten::exp2", "grad * result * 0.6931471805599453"),
      unary("aten::asinh", "grad / (self * self + 1).sqrt()"),
      unary("aten::acosh", "grad / (self * self - 1).sqrt()"),
      unary("aten::atanh", "grad / (1 - self * self)"),
      unary("aten::erfinv", "grad * 0.886226925452758 * (result * result).exp()"),
      unary("aten::lgamma", "grad * torch.digamma(self)"),
      unary("aten::deg2rad", "torch.deg2rad(grad)"),
      unary("aten::rad2deg", "torch.rad2deg(grad)"),
      unary("aten::digamma", "grad * torch.polygamma(1, self)"),
      unary("aten::sign", "torch.zeros_like(grad)"),
      unary("aten::sgn", "torch.zeros_like(grad)"),
      unary(
          "aten::clamp_min",
          kTiesAreShared ? "grad * (self > min).to(grad)" : "grad * (self >= min).to(grad)"),
      unary(
          "aten::clamp_max",
          kTiesAreShared ? "grad * (self < max).to(grad)" : "grad * (self <= max).to(grad)"),
      unary("aten::to.dtype", "converted(grad, self_device, self_dtype, dtype)"),
      unary("aten::to.device", "converted(grad, self_device, self_dtype, dtype)"),
      unary("aten::to.other", "converted(grad, self_device, self_dtype, result_dtype)"),
      unary("aten::type_as", "converted(grad, self_device, self_dtype, result_dtype)"),
      unary("aten::clone", "grad"),
      unary("aten::alias", "grad"),
      unary("aten::positive", "grad"),
      unary("aten::masked_fill.Scalar", "grad.masked_fill(mask, 0)"),
      {"aten::masked_fill.Tensor",
       {{"self", "grad.masked_fill(mask, 0)"},
        {"value", "grad.masked_fill(torch.logical_not(mask), 0).sum()"}}},
      {"aten::addcdiv",
       {{"self", "torch._grad_sum_to_size(grad, self_reduced)"},
        {"tensor1", "torch._grad_sum_to_size(grad * value / tensor2, tensor1_reduced)"},
        {"tensor2",
         "torch._grad_sum_to_size(-grad * value * tensor1 / (tensor2 * tensor2), "
         "tensor2_reduced)"}}},
      {"aten::where.ScalarOther",
       {{"self", "torch._grad_sum_to_size(torch.where(condition, grad, 0.0), self_reduced)"}}},
      {"aten::where.ScalarSelf",
       {{"other", "torch._grad_sum_to_size(torch.where(condition, 0.0, grad), other_reduced)"}}},
  };
}

} // namespace torchlayers::graph
