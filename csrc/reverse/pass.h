// Our own reverse pass, which runs below the layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "core/layer.h"

namespace torchlayers {

// NOTE [The reverse pass]
// If the graph from outputs to inputs is simple, its nodes are run here, the last recorded first,
// on values of the layers below: their computations are ordinary operators there, and the layer
// itself has nothing more to do. A node of torch's own in between is run in the layer's backward
// phase. The values that each node saved are freed as the pass goes, unless the graph is retained.
// The order is the engine's, so sums are added up alike.
// Hooks on nodes and tensors, and anomaly mode, are supported (node_hooks.h, anomaly.h): hooks run
// at the layer's level, as user code, in the engine's order. A graph is not simple, and the engine
// runs all of it, if a hook queries the engine about its pass; if there are autograd.Functions in
// Python; if the order of recording is not that of the graph (several threads); if an input was
// computed from another tensor; if the graph has a node of torch's own and is pulled back inside
// another backward of the engine's.

struct VjpTask {
  const std::vector<at::Tensor>& outputs;
  const std::vector<at::Tensor>& inputs;
  const std::vector<at::Tensor>& cotangents; // if empty: ones, for 0-dimensional outputs
  bool retain_graph;
  bool create_graph;
  Layer* layer; // null if it has ended
};

// The cotangent, batched wherever its output is: torch's own nodes may write values to it that are
// batched like the output, as the node of a write to a view does.
at::Tensor batched_like(const at::Tensor& cotangent, const at::Tensor& output);

// The number of the pass that runs on this thread, unique in the process; 0 if there is none.
uint64_t number_of_pass();

// The gradients with respect to the inputs, as values of the layers below; undefined where no
// output depends on an input. Nullopt if the engine has to run.
std::optional<std::vector<at::Tensor>> vjp_below(const VjpTask& task);

} // namespace torchlayers
