// Determines which values of a graph require grad.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <unordered_set>
#include <vector>

namespace torchlayers::graph {

// The values that gradients flow through: they depend on an input that requires grad, via
// differentiable operators, outside no_grad.
class Tracked {
 public:
  explicit Tracked(torch::jit::Graph& graph);

  bool contains(const torch::jit::Value* value) const {
    return values_.count(value) > 0;
  }
  bool contains_output_of(const torch::jit::Node& node) const;
  bool contains_input_of(const torch::jit::Node& node) const;

 private:
  void visit(torch::jit::Block& block);
  void visit(torch::jit::Node& node);
  void visit_branches(torch::jit::Node& node);
  void visit_loop(torch::jit::Node& node);
  bool reads_tracked(const torch::jit::Node& node) const;

  std::unordered_set<const torch::jit::Value*> values_;
  std::vector<bool> grad_modes_{true};
};

// Whether values of this type may carry a gradient; true if the type doesn't specify it.
bool may_require_grad(const c10::TypePtr& type);

// Sets requires_grad in the types of a graph's first inputs.
void set_inputs_requiring_grad(torch::jit::Graph& graph, const std::vector<bool>& required);

// Removes requires_grad from the types of a block's values.
void forget_requires_grad(torch::jit::Block& block);

// The graph's outputs whose cotangents the reverse graph takes.
std::vector<size_t> outputs_requiring_grad(torch::jit::Graph& graph, const Tracked& tracked);

} // namespace torchlayers::graph
