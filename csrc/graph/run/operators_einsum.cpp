// The gradients of einsum, which are einsums of the cotangent and the other operands.
#include <torch/csrc/jit/runtime/custom_operator.h>

#include "core/aten_functions.h"
#include "graph/run/einsum.h"

namespace {

using torch::jit::Operation;
using torch::jit::Operator;
using torch::jit::pop;
using torch::jit::push;
using torch::jit::Stack;
using torchlayers::graph::Einsum;

// A label that only this operand has was summed over: every element gets the same gradient. If the
// operand has one element for many of another operand's, it gets their sum.
at::Tensor spread(at::Tensor grad, const Einsum& einsum, size_t operand, const at::Tensor& like) {
  const auto& labels = einsum.operands[operand];
  const auto count = int64_t(labels.size());
  const auto ellipsis = int64_t(std::min(labels.find('.'), labels.size()));
  auto size = like.sizes().vec();
  const auto insert = [&](int64_t label, int64_t dim) {
    if (einsum.is_alone(labels[label], operand)) {
      size[dim < 0 ? like.dim() + dim : dim] = 1;
      grad = grad.unsqueeze(dim);
    }
  };
  for (int64_t i = 0; i < ellipsis; ++i) {
    insert(i, i);
  }
  for (int64_t i = count - 1; i > ellipsis; --i) { // after an ellipsis, counted from the end
    insert(i, i - count);
  }
  return at::sum_to(std::move(grad), size).expand(like.sizes());
}

void einsum_backward(Stack& stack) {
  const auto operands = pop(stack).toTensorVector();
  const Einsum einsum(pop(stack).toStringRef());
  const at::Tensor grad = pop(stack).toTensor();
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < operands.size(); ++i) {
    std::vector<at::Tensor> factors{grad};
    for (size_t j = 0; j < operands.size(); ++j) {
      if (j != i) {
        factors.push_back(operands[j]);
      }
    }
    gradients.push_back(spread(at::einsum(einsum.of_gradient(i), factors), einsum, i, operands[i]));
  }
  push(stack, std::move(gradients));
}

const torch::jit::RegisterOperators registered_einsum({
    Operator(
        "torchlayers::einsum_backward(Tensor grad, str equation, Tensor[] operands) -> Tensor[]",
        Operation(einsum_backward),
        c10::AliasAnalysisKind::FROM_SCHEMA),
});

} // namespace
