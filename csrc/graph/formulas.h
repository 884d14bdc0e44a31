// torch's symbolic gradients, ready to be inserted.
#pragma once

#include <torch/csrc/jit/runtime/symbolic_script.h>

namespace torchlayers::graph {

// Calls inlined, tuples taken apart and dead code removed; kept, for a formula is used many
// times. The forward graph returns the operator's outputs and then a context; the backward one
// takes the context and then the cotangents. There has to be a formula for the schema.
const torch::jit::GradientPair& formula_for(const c10::FunctionSchema& schema);

} // namespace torchlayers::graph
