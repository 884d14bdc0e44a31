// Losses. `reduction` is encoded as in torch: 0 none, 1 mean, 2 sum.
#include "graph/rules.h"

namespace torchlayers::graph {

GraphRules loss_rules() {
  return {

      {"aten::l1_loss",
       {{"self", "mean_or_sum(grad, self_size, reduction) * (self - target).sgn()"},
        {"target", "mean_or_sum(grad, self_size, reduction) * (target - self).sgn()"}}},
      {"aten::binary_cross_entropy",
       {{"self", "torch.binary_cross_entropy_backward(grad, self, target, weight, reduction)"},
        {"target",
         "weighted(mean_or_sum(grad, self_size, reduction) * "
         "((1 - self).log().clamp_min(-100) - self.log().clamp_min(-100)), weight)"},
        {"weight",
         "torch._grad_sum_to_size(mean_or_sum(grad, self_size, reduction) * "
         "torch.binary_cross_entropy(self, target, None, 0), weight_size)"}}},
      {"aten::nll_loss",
       {{"self",
         "torch.nll_loss_backward(grad, self, target, weight, reduction, ignore_index, total)"}},
       "result, total = torch.nll_loss_forward(self, target, weight, reduction, ignore_index)"},
  };
}

} // namespace torchlayers::graph
