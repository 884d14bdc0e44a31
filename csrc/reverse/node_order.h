// The nodes that our reverse pass runs, and their order.
#pragma once

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/device.h"
#include "reverse/pass.h"
#include "reverse/rule_node.h"

namespace torchlayers {

// Where an edge leads: nowhere that matters, to an input, or to a step.
struct Goal {
  enum Kind { Nowhere, Input, Step } kind = Nowhere;
  uint32_t index = 0;
};

struct Step {
  torch::autograd::Node* node;
  RuleNode* rule; // null if the node is torch's own
  uint32_t first_goal;
  uint32_t first_cotangent;
  bool is_needed;
};

// The graph from the outputs to the inputs, if it is simple. NOTE [The reverse pass].
struct Plan {
  // Returns false if the engine has to run.
  bool make(const VjpTask& task);

  const Goal& goal(const Step& step, size_t edge) const {
    return goals[step.first_goal + edge];
  }
  at::ArrayRef<Goal> goals_of(const Step& step) const {
    return {goals.data() + step.first_goal, step.node->num_outputs()};
  }
  bool leads_on(const Goal& goal) const {
    return goal.kind == Goal::Input || (goal.kind == Goal::Step && steps[goal.index].is_needed);
  }

  // The device, besides the CPU, that all of the graph was recorded on, unless it has streams.
  std::optional<c10::Device> device() const {
    return stream_.device();
  }

  std::vector<Step> steps;
  std::vector<uint32_t> order; // of the steps, the last recorded first
  std::vector<Goal> goals;     // of the steps' edges
  std::vector<torch::autograd::Edge> roots;
  std::vector<Goal> root_goals;
  uint32_t num_cotangents = 0;
  bool has_nodes_of_torchs = false;
  bool has_streams = false; // other than the current one. NOTE [Streams].
  // How many edges of the steps to be run lead to each input; empty if there are no hooks.
  std::vector<uint32_t> edges_to_inputs;

 private:
  // Notes where an edge leads, and that its node has to be run. Returns false if it must not be.
  bool reach(const torch::autograd::Edge& edge, std::vector<Goal>& of_edges);
  void look_at_streams(const torch::autograd::Node& node);
  // Puts the last recorded first. Returns false if that is not the order of the graph.
  bool sort();
  void mark_needed();
  void count_edges_to(size_t num_inputs);
  uint64_t recorded(uint32_t step) const {
    return steps[step].node->sequence_nr();
  }

  // torch's own nodes then ask the engine's task which gradients are needed, and it is not ours.
  const bool is_inside_engine_ = torch::autograd::get_current_graph_task_id() != -1;
  std::vector<torch::autograd::Node*> watched_;
  OneStream stream_;
  std::vector<torch::autograd::Edge> leaves_; // nothing else may hold them
  ska::flat_hash_map<torch::autograd::Node*, Goal> goals_of_nodes_;
};

} // namespace torchlayers
