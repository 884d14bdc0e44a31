// torch's symbolic gradients, ready to be inserted.
#pragma once

#include <torch/csrc/jit/runtime/symbolic_script.h>

namespace torchlayers::graph {

// With calls inlined, tuples unpacked and dead code removed. Cached, because a formula is used many
// times. The forward graph returns the operator's outputs and then a context; the backward one
// takes the context and then the cotangents. The schema must have a formula.
const torch::jit::GradientPair& formula_for(const c10::FunctionSchema& schema);

} // namespace torchlayers::graph
