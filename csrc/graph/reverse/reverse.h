// The reverse block: built next to the forward graph, whose values it reads directly.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <unordered_map>
#include <vector>

#include "graph/gradient.h"
#include "graph/gradients/handwritten.h"
#include "graph/tracked.h"

namespace torchlayers::graph {

// The gradients of a forward block's values, during the reverse sweep.
class Gradients {
 public:
  // nullptr if there is no gradient yet.
  torch::jit::Value* find(const torch::jit::Value* value) const;
  // Adds a gradient to the existing one, at the graph's insert point.
  void add(torch::jit::Value* value, torch::jit::Value* gradient);
  // A value of the forward graph has been replaced by a new one.
  void rename(torch::jit::Value* from, torch::jit::Value* to);
  // Removes entries for values that are not in these sets.
  void keep_only(
      const std::unordered_set<const torch::jit::Value*>& forward,
      const std::unordered_set<const torch::jit::Value*>& reverse);

  // A list of tensors has no gradient itself; its members have.
  void add_part(torch::jit::Value* list, Part part);
  const std::vector<Part>& parts(const torch::jit::Value* list) const;
  std::vector<const torch::jit::Value*> lists() const; // those that have parts

  // The values that have a gradient, in the order in which they got it.
  const std::vector<torch::jit::Value*>& values() const {
    return order_;
  }

 private:
  std::unordered_map<const torch::jit::Value*, torch::jit::Value*> gradients_;
  std::unordered_map<const torch::jit::Value*, std::vector<Part>> parts_;
  std::vector<torch::jit::Value*> order_;
};

struct Reverse {
  // prim::Reverse is in no block, so that passes over the forward graph ignore it.
  torch::jit::Node* node;
  torch::jit::Block* block;
  Gradients gradients;
};

// Fills in df_input_vjps and df_output_vjps.
Reverse add_reverse(torch::jit::Graph& graph, const Tracked& tracked, ScriptGradient& result);

// Inserts the gradients of a block's nodes at the graph's insert point, last node first.
void sweep(torch::jit::Block& forward, Gradients& gradients, const Tracked& tracked);

// Names a value's gradient, to make graphs readable.
torch::jit::Value* name_gradient(torch::jit::Value* gradient, const torch::jit::Value* of);

// An undefined tensor, which represents a gradient of zero.
torch::jit::Value* zero(torch::jit::Graph& graph);

} // namespace torchlayers::graph
