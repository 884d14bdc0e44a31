// The reverse block: built beside the forward graph, reading its values in place.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <unordered_map>
#include <vector>

#include "graph/gradient.h"
#include "graph/handwritten.h"
#include "graph/tracked.h"

namespace torchlayers::graph {

// What is known of the gradients of a forward block's values, while it is swept backwards.
class Gradients {
 public:
  // nullptr where no gradient has arrived.
  torch::jit::Value* find(const torch::jit::Value* value) const;
  // At the graph's insert point; what has arrived before is added.
  void add(torch::jit::Value* value, torch::jit::Value* gradient);
  // A new value of the forward graph has taken an old one's place.
  void rename(torch::jit::Value* from, torch::jit::Value* to);
  // Forgets what is not among these values any more.
  void keep_only(
      const std::unordered_set<const torch::jit::Value*>& forward,
      const std::unordered_set<const torch::jit::Value*>& reverse);

  // Lists of tensors have no gradient of their own, their members do.
  void add_part(torch::jit::Value* list, Part part);
  const std::vector<Part>& parts(const torch::jit::Value* list) const;
  std::vector<const torch::jit::Value*> lists() const; // those that have parts

  // The values that have a gradient, in the order in which it arrived.
  const std::vector<torch::jit::Value*>& values() const {
    return order_;
  }

 private:
  std::unordered_map<const torch::jit::Value*, torch::jit::Value*> gradients_;
  std::unordered_map<const torch::jit::Value*, std::vector<Part>> parts_;
  std::vector<torch::jit::Value*> order_;
};

struct Reverse {
  // prim::Reverse is in no block, so that passes over the forward graph leave it alone.
  torch::jit::Node* node;
  torch::jit::Block* block;
  Gradients gradients;
};

// Fills in df_input_vjps and df_output_vjps.
Reverse add_reverse(torch::jit::Graph& graph, const Tracked& tracked, ScriptGradient& result);

// Inserts the gradients of a block's nodes at the graph's insert point, last node first.
void sweep(torch::jit::Block& forward, Gradients& gradients, const Tracked& tracked);

// The name of a value's gradient, for those who read the graphs.
torch::jit::Value* name_gradient(torch::jit::Value* gradient, const torch::jit::Value* of);

// An undefined tensor, which stands for a gradient that is zero.
torch::jit::Value* zero(torch::jit::Graph& graph);

} // namespace torchlayers::graph
