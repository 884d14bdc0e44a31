// Which values of a graph require grad.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <unordered_set>
#include <vector>

namespace torchlayers::graph {

// The values that gradients flow through: they depend on an input that requires grad, by
// operators that have a derivative, outside no_grad.
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

// Whether values of this type may carry a gradient. A type that says nothing may.
bool may_require_grad(const c10::TypePtr& type);

// Writes into the types of a graph's first inputs whether they require grad.
void set_inputs_requiring_grad(torch::jit::Graph& graph, const std::vector<bool>& required);

// Takes what the types of a block's values say about it back.
void forget_requires_grad(torch::jit::Block& block);

// The graph's outputs whose cotangents the reverse graph takes.
std::vector<size_t> outputs_requiring_grad(torch::jit::Graph& graph, const Tracked& tracked);

} // namespace torchlayers::graph
