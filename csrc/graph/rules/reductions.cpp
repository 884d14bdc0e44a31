// Sums, extrema, norms and operators along a dimension.
#include "graph/rules/rules.h"

namespace torchlayers::graph {

GraphRules reduction_rules() {
  return {
      {"aten::sum", {{"self", "as_before(grad.expand(self_size), dtype, self_dtype)"}}},
      {"aten::sum.dim_IntList",
       {{"self", "as_before(spread(grad, self_size, dim, keepdim), dtype, self_dtype)"}}},
      {"aten::prod",
       {{"self",
         "as_before(grad * product_of_others(self.reshape(-1), 0).reshape(self_size), dtype, "
         "self_dtype)"}}},
      {"aten::prod.dim_int",
       {{"self",
         "as_before(spread(grad, self_size, [dim], keepdim) * product_of_others(self, dim), dtype, "
         "self_dtype)"}}},
      {"aten::trace", {{"self", "torch.trace_backward(grad, self_size)"}}},
      {"aten::amax",
       {{"self",
         "evenly_along(spread(grad, self_size, dim, keepdim), "
         "(self == spread(result, self_size, dim, keepdim)).to(grad), dim)"}}},
      {"aten::amin",
       {{"self",
         "evenly_along(spread(grad, self_size, dim, keepdim), "
         "(self == spread(result, self_size, dim, keepdim)).to(grad), dim)"}}},
      {"aten::cumsum", {{"self", "as_before(reversed_cumsum(grad, dim), dtype, self_dtype)"}}},
      {"aten::cumprod",
       {{"self", "as_before(torch.cumprod_backward(grad, self, dim, result), dtype, self_dtype)"}}},
      {"aten::logcumsumexp", {{"self", "logcumsumexp_backward(grad, self, result, dim)"}}},
      {"aten::dist",
       {{"self",
         "torch._grad_sum_to_size("
         "norm_backward(grad, difference(self, other), result, float(p)), self_size)"},
        {"other",
         "torch._grad_sum_to_size("
         "norm_backward(grad, difference(other, self), result, float(p)), other_size)"}}},
      {"aten::norm.Scalar", {{"self", "norm_backward(grad, self, result, float(p))"}}},
      {"aten::norm.ScalarOpt_dim",
       {{"self", "norm_dim_backward(grad, self, result, order(p), self_size, dim, keepdim)"}}},
      {"aten::linalg_vector_norm",
       {{"self", "norm_dim_backward(grad, self, result, float(ord), self_size, dim, keepdim)"}}},
  };
}

} // namespace torchlayers::graph
