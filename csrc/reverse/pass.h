// The reverse pass of our own, below the layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "core/layer.h"

namespace torchlayers {

// NOTE [The reverse pass]
// Where the graph from outputs to inputs is simple, its nodes are run here, the last recorded
// first, on values of the layers below: what they compute are ordinary operators there, and
// the layer itself has nothing more to do. A node of torch's own in between is run in the
// layer's backward phase. What each node saved is freed as the pass goes, unless the graph is
// retained. The order is the engine's, so sums are added up alike.
// Hooks on nodes and tensors, and anomaly mode, are part of it (watched.h, anomaly.h): hooks run at
// the layer's level, as user's code, in the engine's order.
// A graph is not simple, and the engine runs all of it, where a hook asks the engine about its
// pass; where there are autograd.Functions in Python; where the order of recording is not that of
// the graph (several threads); where an input was computed from another tensor; where a node of
// torch's own is in a graph that is pulled back inside another backward of the engine's.

struct VjpTask {
  const std::vector<at::Tensor>& outputs;
  const std::vector<at::Tensor>& inputs;
  const std::vector<at::Tensor>& cotangents; // none: ones, for outputs without dimensions
  bool retain_graph;
  bool create_graph;
  Layer* layer; // null where it has ended
};

// A cotangent that is batched wherever its output is. What torch's own nodes do to it may write to
// it what is batched so: that of a write to a view does.
at::Tensor batched_like(const at::Tensor& cotangent, const at::Tensor& output);

// The number of the pass that runs on this thread, which no other ever has; 0 where none does.
uint64_t number_of_pass();

// The gradients by the inputs, undefined where an output does not depend on one; values of
// the layers below. None of this where the engine has to run.
std::optional<std::vector<at::Tensor>> vjp_below(const VjpTask& task);

} // namespace torchlayers
