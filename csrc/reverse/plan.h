// What a reverse pass of ours runs.
#pragma once

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cstdint>
#include <vector>

#include "reverse/pass.h"
#include "reverse/rule_node.h"

namespace torchlayers {

// Where an edge leads: to no one who asks, to an input, or to a step.
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
class Plan {
 public:
  // False where the engine has to run.
  bool make(const VjpTask& task);

  const std::vector<uint32_t>& order() const {
    return order_;
  }
  const Step& step(uint32_t i) const {
    return steps_[i];
  }
  const Goal& goal(const Step& step, size_t edge) const {
    return goals_[step.first_goal + edge];
  }
  const Goal& root_goal(size_t output) const {
    return root_goals_[output];
  }
  const torch::autograd::Edge& root(size_t output) const {
    return roots_[output];
  }
  uint32_t num_cotangents() const {
    return num_cotangents_;
  }
  // Whether a node of torch's own is among them.
  bool has_nodes_of_torchs() const {
    return has_nodes_of_torchs_;
  }
  bool leads_on(const Goal& goal) const {
    return goal.kind == Goal::Input || (goal.kind == Goal::Step && steps_[goal.index].is_needed);
  }

 private:
  // Notes where an edge leads, and that its node is to be run. False if it must not be.
  bool reach(const torch::autograd::Edge& edge, std::vector<Goal>& goals);
  // The last recorded first. False if that is not the graph's order.
  bool sort();
  void mark_needed();
  uint64_t recorded(uint32_t step) const {
    return steps_[step].node->sequence_nr();
  }

  // torch's own nodes then ask the engine's task what of theirs is wanted, which is another's.
  const bool is_inside_engine_ = torch::autograd::get_current_graph_task_id() != -1;
  std::vector<torch::autograd::Edge> leaves_; // which nobody else may hold
  ska::flat_hash_map<torch::autograd::Node*, Goal> goals_of_nodes_;
  std::vector<Step> steps_;
  std::vector<Goal> goals_;
  std::vector<Goal> root_goals_;
  std::vector<torch::autograd::Edge> roots_;
  std::vector<uint32_t> order_;
  uint32_t num_cotangents_ = 0;
  bool has_nodes_of_torchs_ = false;
};

} // namespace torchlayers
