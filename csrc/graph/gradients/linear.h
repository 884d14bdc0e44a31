// A node's gradient wrapped in prim::GradOf: it is linear in its cotangents, so if all of them are
// zero (undefined) at run time, none of it has to run.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <functional>
#include <vector>

#include "graph/gradients/node_gradient.h"
#include "graph/reverse/reverse.h"

namespace torchlayers::graph {

class Linear {
 public:
  // Inserts the wrapper at the graph's insert point.
  Linear(torch::jit::Node& of, const std::vector<torch::jit::Value*>& cotangents);

  // Runs `build` with the graph's insert point inside.
  template <class Build>
  auto build(const Build& build) {
    const torch::jit::WithInsertPoint inside(block_);
    return build();
  }
  torch::jit::Node* insert(torch::jit::Node* node);

  // Makes a value inside the wrapper the gradient of a forward value, or a term of its gradient.
  void give(torch::jit::Value* forward, torch::jit::Value* inside, Gradients& gradients);
  void give(
      torch::jit::Value* forward,
      const std::function<torch::jit::Value*()>& build_inside,
      Gradients& gradients);

 private:
  torch::jit::Node* node_;
  torch::jit::Block* block_;
};

} // namespace torchlayers::graph
