#include "graph/differentiable.h"

#include <torch/csrc/jit/ir/constants.h>

#include <string_view>
#include <unordered_set>

#include "graph/gradients/lines.h"

namespace torchlayers::graph {

using torch::jit::Node;
namespace prim = c10::prim;

namespace {

// Operators (without "aten::") whose outputs carry no gradient.
const std::unordered_set<std::string_view>& without_derivative() {
  static const std::unordered_set<std::string_view> names{
      "detach",
      "eq",
      "ne",
      "lt",
      "le",
      "gt",
      "ge",
      "isnan",
      "isinf",
      "isfinite",
      "isclose",
      "allclose",
      "equal",
      "logical_not",
      "logical_and",
      "logical_or",
      "logical_xor",
      "bitwise_and",
      "bitwise_or",
      "bitwise_not",
      "bitwise_xor",
      "any",
      "all",
      "argmax",
      "argmin",
      "argsort",
      "nonzero",
      "signbit",
      "size",
      "dim",
      "numel",
      "zeros_like",
      "ones_like",
      "full_like",
      "empty_like",
      "rand_like",
      "randn_like",
      "new_zeros",
      "new_ones",
      "new_full",
      "new_empty",
      "bernoulli",
      "multinomial",
      "randint_like",
      "is_nonzero",
      "searchsorted",
      "bucketize",
      "histc",
      "count_nonzero",
      "one_hot",
      "floor_divide",
      "isreal",
      "isneginf",
      "isposinf"};
  return names;
}

// Whether this output carries a gradient; others are indices, or values that the backward reads.
bool differentiates(const Node& node, size_t output) {
  static const std::unordered_set<std::string_view> only_first{
      "native_dropout", "max_pool1d_with_indices", "adaptive_max_pool1d"};
  return output == 0 ||
         (lines_differentiate(node, output) && only_first.count(node.kind().toUnqualString()) == 0);
}

// x.long() and the like: integers have no gradient.
bool gives_integers(const Node& node) {
  if (node.kind() != c10::aten::to || !node.hasNamedInput("dtype")) {
    return false;
  }
  const auto given = torch::jit::toIValue(node.namedInput("dtype"));
  if (!given || !given->isInt()) {
    return false;
  }
  const auto dtype = c10::ScalarType(given->toInt());
  return !c10::isFloatingType(dtype) && !c10::isComplexType(dtype);
}

} // namespace

bool has_derivative(const Node& node, size_t output) {
  if (node.kind() == prim::Constant || node.kind() == prim::AutogradZero) {
    return false;
  }
  if (node.kind() == prim::profile && node.hasAttribute(c10::attr::profiled_type)) {
    return node.ty(c10::attr::profiled_type)->requires_grad();
  }
  if (!node.kind().is_aten()) {
    return true;
  }
  const std::string_view name = node.kind().toUnqualString();
  return without_derivative().count(name) == 0 && !gives_integers(node) &&
         differentiates(node, output);
}

bool is_trimmed(const Node& node) {
  return node.kind().is_aten() && node.outputs().size() > 1 &&
         !differentiates(node, node.outputs().size() - 1);
}

} // namespace torchlayers::graph
