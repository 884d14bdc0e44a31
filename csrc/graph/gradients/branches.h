// The gradient of prim::If: another prim::If with the same condition.
#pragma once

#include "graph/reverse/reverse.h"

namespace torchlayers::graph {

void differentiate_branches(torch::jit::Node& node, Gradients& gradients, const Tracked& tracked);

} // namespace torchlayers::graph
