// Elementwise functions, of one argument or of several that broadcast.
#include "graph/rules.h"

namespace torchlayers::graph {

namespace {

GraphRule unary(const std::string& op, const std::string& gradient) {
  return {op, {{"self", gradient}}};
}

} // namespace

GraphRules elementwise_rules() {
  return {
      unary("aten::square", "grad * 2 * self"),
      unary("aten::erfinv", "grad * 0.886226925452758 * (result * result).exp()"),
      unary("aten::sign", "torch.zeros_like(grad)"),
      unary("aten::sgn", "torch.zeros_like(grad)"),
      unary("aten::to.dtype", "converted(grad, self_device, self_dtype, dtype)"),
      unary("aten::to.device", "converted(grad, self_device, self_dtype, dtype)"),
      unary("aten::to.other", "converted(grad, self_device, self_dtype, result_dtype)"),
      unary("aten::type_as", "converted(grad, self_device, self_dtype, result_dtype)"),
      unary("aten::alias", "grad"),
      unary("aten::positive", "grad"),
      {"aten::where.self",
       {{"self", "torch._grad_sum_to_size(torch.where(condition, grad, 0.0), self_reduced)"},
        {"other", "torch._grad_sum_to_size(torch.where(condition, 0.0, grad), other_reduced)"}}},
      {"aten::where.ScalarOther",
       {{"self", "torch._grad_sum_to_size(torch.where(condition, grad, 0.0), self_reduced)"}}},
      {"aten::where.ScalarSelf",
       {{"other", "torch._grad_sum_to_size(torch.where(condition, 0.0, grad), other_reduced)"}}},
  };
}

} // namespace torchlayers::graph
