#include "reverse/plan.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>

#include "core/device.h"
#include "reverse/nodes.h"

namespace torchlayers {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;

bool is_watched(Node& node) {
  return !node.pre_hooks().empty() || !node.post_hooks().empty() ||
         !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty();
}

bool node_runs_in_order(const Node& node) {
  for (uint32_t i = 0; i < node.num_inputs(); ++i) {
    const auto& metadata = node.input_metadata(i);
    if (!metadata.was_default_constructed() && !runs_in_order(metadata.device())) {
      return false;
    }
  }
  return true;
}

} // namespace

bool Plan::make(const VjpTask& task) {
  for (size_t i = 0; i < task.inputs.size(); ++i) {
    leaves_.push_back(torch::autograd::impl::gradient_edge(task.inputs[i]));
    const Edge& edge = leaves_.back();
    if (!edge.is_valid() || leaf_of(*edge.function) == nullptr || is_watched(*edge.function)) {
      return false;
    }
    goals_of_nodes_[edge.function.get()] = {Goal::Input, static_cast<uint32_t>(i)};
  }
  for (const at::Tensor& output : task.outputs) {
    roots_.push_back(torch::autograd::impl::gradient_edge(output));
    if (!reach(roots_.back(), root_goals_)) {
      return false;
    }
  }
  for (size_t i = 0; i < steps_.size(); ++i) { // grows meanwhile
    Node& node = *steps_[i].node;
    steps_[i].first_goal = static_cast<uint32_t>(goals_.size());
    for (const Edge& edge : node.next_edges()) {
      if (!reach(edge, goals_)) {
        return false;
      }
    }
    steps_[i].first_cotangent = num_cotangents_;
    num_cotangents_ += node.num_inputs();
  }
  if (!sort()) {
    return false;
  }
  mark_needed();
  return true;
}

bool Plan::reach(const Edge& edge, std::vector<Goal>& goals) {
  Node* node = edge.function.get();
  if (node == nullptr) {
    goals.emplace_back();
    return true;
  }
  const auto found = goals_of_nodes_.find(node);
  if (found != goals_of_nodes_.end()) {
    goals.push_back(found->second);
    return true;
  }
  if (is_watched(*node) || !node_runs_in_order(*node)) {
    return false;
  }
  Goal goal;
  if (leaf_of(*node) == nullptr) {
    auto* rule = rule_node_of(*node);
    if (rule == nullptr && (is_inside_engine_ || is_python_function(*node))) {
      return false;
    }
    has_nodes_of_torchs_ = has_nodes_of_torchs_ || rule == nullptr;
    goal = {Goal::Step, static_cast<uint32_t>(steps_.size())};
    steps_.push_back({node, rule, 0, 0, false});
  }
  goals_of_nodes_[node] = goal;
  goals.push_back(goal);
  return true;
}

bool Plan::sort() {
  order_.resize(steps_.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto later = [this](uint32_t a, uint32_t b) { return recorded(a) > recorded(b); };
  if (!std::is_sorted(order_.begin(), order_.end(), later)) {
    std::sort(order_.begin(), order_.end(), later);
  }
  for (uint32_t i = 0; i < steps_.size(); ++i) {
    const uint64_t when = recorded(i);
    for (size_t edge = 0; edge < steps_[i].node->num_outputs(); ++edge) {
      const Goal& to = goal(steps_[i], edge);
      if (to.kind == Goal::Step && recorded(to.index) >= when) {
        return false;
      }
    }
  }
  return true;
}

void Plan::mark_needed() {
  for (auto i = order_.rbegin(); i != order_.rend(); ++i) {
    Step& step = steps_[*i];
    for (size_t edge = 0; edge < step.node->num_outputs() && !step.is_needed; ++edge) {
      step.is_needed = leads_on(goal(step, edge));
    }
  }
}

} // namespace torchlayers
