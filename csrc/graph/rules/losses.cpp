// Losses. `reduction` is encoded as in torch: 0 none, 1 mean, 2 sum.
#include "graph/rules.h"

namespace torchlayers::graph {

GraphRules loss_rules() {
  return {

      {"aten::l1_loss",
       {{"self", "mean_or_sum(grad, self_size, reduction) * (self - target).sgn()"},
        {"target", "mean_or_sum(grad, self_size, reduction) * (target - self).sgn()"}}},
      {"aten::nll_loss",
       {{"self",
         "torch.nll_loss_backward(grad, self, target, weight, reduction, ignore_index, total)"}},
       "result, total = torch.nll_loss_forward(self, target, weight, reduction, ignore_index)"},
  };
}

} // namespace torchlayers::graph
