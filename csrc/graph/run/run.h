// Runs a graph unchanged, without the executor that would optimise or differentiate it.
#pragma once

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/interpreter.h>

namespace torchlayers::graph {

class Program {
 public:
  explicit Program(const torch::jit::Graph& graph);
  // Every operator goes through the dispatcher, so that layers and autograd see it.
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs) const;

 private:
  torch::jit::Code code_;
};

} // namespace torchlayers::graph
