// The gradients of matmul, whose operands may be vectors, matrices and batches of them. Which ones
// they are is known at run time, and in a custom operator the branches do not clutter the graphs.
#include <torch/csrc/jit/runtime/custom_operator.h>

#include "core/aten_functions.h"

namespace {

using torch::jit::Operation;
using torch::jit::Operator;
using torch::jit::pop;
using torch::jit::push;
using torch::jit::Stack;

// self (..., n, k) times other (..., k, m) is (..., n, m). A vector self has no n, a vector other
// has no m, and then the result lacks it too.
void backward_self(Stack& stack) {
  const auto size = pop(stack).toIntVector();
  const at::Tensor other = pop(stack).toTensor();
  at::Tensor grad = pop(stack).toTensor();
  if (other.dim() == 1) {
    push(stack, at::sum_to(grad.unsqueeze(-1) * other, size));
  } else if (size.size() == 1) {
    push(stack, at::sum_to(at::matmul(other, grad.unsqueeze(-1)).squeeze(-1), size));
  } else {
    push(stack, at::sum_to(at::matmul(grad, other.mT()), size));
  }
}

void backward_other(Stack& stack) {
  const auto size = pop(stack).toIntVector();
  const at::Tensor self = pop(stack).toTensor();
  const at::Tensor grad = pop(stack).toTensor();
  if (self.dim() == 1 && size.size() == 1) {
    push(stack, grad * self);
  } else if (size.size() == 1) {
    push(stack, at::sum_to(at::matmul(self.mT(), grad.unsqueeze(-1)).squeeze(-1), size));
  } else if (self.dim() == 1) {
    push(stack, at::sum_to(self.unsqueeze(-1) * grad.unsqueeze(-2), size));
  } else if (size.size() == 2 && self.dim() > 2) {
    // One product of two tall matrices, instead of a batch of products to be summed.
    push(stack, at::mm(self.flatten(0, -2).t(), grad.flatten(0, -2)));
  } else {
    push(stack, at::sum_to(at::matmul(self.mT(), grad), size));
  }
}

Operator declared(const std::string& signature, void (*run)(Stack&)) {
  return Operator(
      "torchlayers::" + signature + " -> Tensor",
      Operation(run),
      c10::AliasAnalysisKind::FROM_SCHEMA);
}

const torch::jit::RegisterOperators registered_matmul({
    declared("matmul_backward_self(Tensor grad, Tensor other, int[] self_size)", backward_self),
    declared("matmul_backward_other(Tensor grad, Tensor self, int[] other_size)", backward_other),
});

} // namespace
