// Products of vectors and matrices that torch's symbolic gradients lack.
#include "graph/rules.h"

namespace torchlayers::graph {

GraphRules linear_algebra_rules() {
  return {
      // torch's formula has a hundred nodes to determine which operands are vectors.
      {"aten::matmul",
       {{"self", "torchlayers.matmul_backward_self(grad, other, self_size)"},
        {"other", "torchlayers.matmul_backward_other(grad, self, other_size)"}}},
      {"aten::outer", {{"self", "grad.mv(vec2)"}, {"vec2", "grad.t().mv(self)"}}},
      {"aten::addmv",
       {{"self", "torch._grad_sum_to_size(grad * beta, self_reduced)"},
        {"mat", "torch.outer(grad, vec) * alpha"},
        {"vec", "mat.t().mv(grad) * alpha"}}},
      {"aten::baddbmm",
       {{"self", "torch._grad_sum_to_size(grad * beta, self_reduced)"},
        {"batch1", "grad.bmm(batch2.transpose(1, 2)) * alpha"},
        {"batch2", "batch1.transpose(1, 2).bmm(grad) * alpha"}}},
      {"aten::linalg_inv", {{"A", "-result.mT.matmul(grad).matmul(result.mT)"}}},
      {"aten::trace", {{"self", "torch.trace_backward(grad, self_size)"}}},
  };
}

} // namespace torchlayers::graph
