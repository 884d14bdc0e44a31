#include "graph/differentiable.h"

#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/runtime/symbolic_script.h>

#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "graph/handwritten.h"
#include "graph/rules.h"

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

// The number of leading outputs that carry a gradient; the others are indices, or values that the
// backward reads.
size_t differentiable_outputs(std::string_view name) {
  static const std::unordered_map<std::string_view, size_t> counts{
      {"topk", 1},
      {"kthvalue", 1},
      {"sort", 1},
      {"mode", 1},
      {"max", 1},
      {"min", 1},
      {"median", 1},
      {"nanmedian", 1},
      {"cummax", 1},
      {"cummin", 1},
      {"native_batch_norm", 1},
      {"native_dropout", 1},
      {"native_layer_norm", 1},
      {"max_pool1d_with_indices", 1},
      {"max_pool2d_with_indices", 1},
      {"max_pool3d_with_indices", 1},
      {"adaptive_max_pool1d", 1},
      {"adaptive_max_pool2d", 1},
      {"adaptive_max_pool3d", 1}};
  const auto found = counts.find(name);
  return found == counts.end() ? SIZE_MAX : found->second;
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
         output < differentiable_outputs(name);
}

bool is_trimmed(const Node& node) {
  return node.kind().is_aten() && node.outputs().size() > 1 &&
         differentiable_outputs(node.kind().toUnqualString()) < node.outputs().size();
}

bool is_differentiable(const Node& node) {
  if (is_handwritten(node) || rule_for(node) != nullptr) {
    return true;
  }
  const auto* schema = node.maybeSchema();
  return schema != nullptr && torch::jit::hasGradientInfoForSchema(*schema);
}

} // namespace torchlayers::graph
