// A differentiated graph: two graphs and how they fit together.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torchlayers::graph {

// All numbers are positions among f's inputs or outputs.
struct ScriptGradient {
  // Returns the original's outputs, then the temporaries that df needs.
  std::shared_ptr<torch::jit::Graph> f;
  // Takes cotangents of f's outputs (df_input_vjps), captured inputs of f and captured outputs
  // of f, in this order. Returns one tuple: the cotangents of f's inputs (df_output_vjps).
  std::shared_ptr<torch::jit::Graph> df;
  size_t f_real_outputs = 0;
  std::vector<size_t> df_input_vjps;
  std::vector<size_t> df_output_vjps;
  std::vector<size_t> df_input_captured_inputs;
  std::vector<size_t> df_input_captured_outputs;
  // The printed graph after each step, if requested.
  std::vector<std::pair<std::string, std::string>> steps;
};

// Differentiates a prepared graph (prepare.h), which is not modified. With keep_steps, the result
// includes the graph after every step.
ScriptGradient differentiate(const torch::jit::Graph& prepared, bool keep_steps);

} // namespace torchlayers::graph
