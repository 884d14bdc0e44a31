// Losses. reduction is torch's: 0 none, 1 mean, 2 sum.
#include "graph/rules.h"

namespace torchlayers::graph {

Rules loss_rules() {
  return {
      {"aten::mse_loss",
       {{"self", "torch.mse_loss_backward(grad, self, target, reduction)"},
        {"target", "torch.mse_loss_backward(grad, target, self, reduction)"}}},
      {"aten::smooth_l1_loss",
       {{"self", "torch.smooth_l1_loss_backward(grad, self, target, reduction, beta)"},
        {"target", "torch.smooth_l1_loss_backward(grad, target, self, reduction, beta)"}}},
      {"aten::huber_loss",
       {{"self", "torch.huber_loss_backward(grad, self, target, reduction, delta)"},
        {"target", "torch.huber_loss_backward(grad, target, self, reduction, delta)"}}},
      {"aten::l1_loss",
       {{"self", "mean_or_sum(grad, self_size, reduction) * (self - target).sgn()"},
        {"target", "mean_or_sum(grad, self_size, reduction) * (target - self).sgn()"}}},
      {"aten::binary_cross_entropy",
       {{"self", "torch.binary_cross_entropy_backward(grad, self, target, weight, reduction)"}}},
      {"aten::nll_loss",
       {{"self",
         "torch.nll_loss_backward(grad, self, target, weight, reduction, ignore_index, total)"}},
       "result, total = torch.nll_loss_forward(self, target, weight, reduction, ignore_index)"},
  };
}

} // namespace torchlayers::graph
