#include "reverse/node_order.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>

#include "core/callbacks.h"
#include "reverse/node_hooks.h"
#include "reverse/node_kinds.h"

namespace torchlayers {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;

} // namespace

bool Plan::make(const VjpTask& task) {
  for (size_t i = 0; i < task.inputs.size(); ++i) {
    leaves_.push_back(torch::autograd::impl::gradient_edge(task.inputs[i]));
    const Edge& edge = leaves_.back();
    if (!edge.is_valid() || leaf_of(*edge.function) == nullptr) {
      return false;
    }
    if (is_watched_leaf(*edge.function)) {
      watched_.push_back(edge.function.get());
    }
    look_at_streams(*edge.function);
    goals_of_nodes_[edge.function.get()] = {Goal::Input, static_cast<uint32_t>(i)};
  }
  for (const at::Tensor& output : task.outputs) {
    roots.push_back(torch::autograd::impl::gradient_edge(output));
    if (!reach(roots.back(), root_goals)) {
      return false;
    }
  }
  for (size_t i = 0; i < steps.size(); ++i) { // grows meanwhile
    Node& node = *steps[i].node;
    steps[i].first_goal = static_cast<uint32_t>(goals.size());
    for (const Edge& edge : node.next_edges()) {
      if (!reach(edge, goals)) {
        return false;
      }
    }
    steps[i].first_cotangent = num_cotangents;
    num_cotangents += node.num_inputs();
  }
  if (!sort() || (!watched_.empty() && callbacks.any_needs_engine(watched_))) {
    return false;
  }
  mark_needed();
  if (!watched_.empty()) {
    count_edges_to(task.inputs.size());
  }
  return true;
}

bool Plan::reach(const Edge& edge, std::vector<Goal>& of_edges) {
  Node* node = edge.function.get();
  if (node == nullptr) {
    of_edges.emplace_back();
    return true;
  }
  const auto found = goals_of_nodes_.find(node);
  if (found != goals_of_nodes_.end()) {
    of_edges.push_back(found->second);
    return true;
  }
  look_at_streams(*node);
  Goal goal;
  if (leaf_of(*node) == nullptr) {
    auto* rule = rule_node_of(*node);
    if (rule == nullptr && (is_inside_engine_ || is_python_function(*node))) {
      return false;
    }
    if (is_watched(*node)) {
      watched_.push_back(node);
    }
    has_nodes_of_torchs = has_nodes_of_torchs || rule == nullptr;
    goal = {Goal::Step, static_cast<uint32_t>(steps.size())};
    steps.push_back({node, rule, 0, 0, false});
  }
  goals_of_nodes_[node] = goal;
  of_edges.push_back(goal);
  return true;
}

void Plan::look_at_streams(const Node& node) {
  for (uint32_t i = 0; i < node.num_inputs() && !has_streams; ++i) {
    const auto& metadata = node.input_metadata(i);
    has_streams = !metadata.was_default_constructed() &&
                  !stream_.goes_on(metadata.device(), metadata.stream());
  }
}

bool Plan::sort() {
  order.resize(steps.size());
  std::iota(order.begin(), order.end(), 0);
  const auto later = [this](uint32_t a, uint32_t b) { return recorded(a) > recorded(b); };
  if (!std::is_sorted(order.begin(), order.end(), later)) {
    std::sort(order.begin(), order.end(), later);
  }
  for (uint32_t i = 0; i < steps.size(); ++i) {
    const uint64_t when = recorded(i);
    for (size_t edge = 0; edge < steps[i].node->num_outputs(); ++edge) {
      const Goal& to = goal(steps[i], edge);
      if (to.kind == Goal::Step && recorded(to.index) >= when) {
        return false;
      }
    }
  }
  return true;
}

void Plan::mark_needed() {
  for (auto i = order.rbegin(); i != order.rend(); ++i) {
    Step& step = steps[*i];
    for (size_t edge = 0; edge < step.node->num_outputs() && !step.is_needed; ++edge) {
      step.is_needed = leads_on(goal(step, edge));
    }
  }
}

void Plan::count_edges_to(size_t num_inputs) {
  edges_to_inputs.resize(num_inputs);
  const auto count = [this](at::ArrayRef<Goal> of_edges) {
    for (const Goal& goal : of_edges) {
      if (goal.kind == Goal::Input) {
        ++edges_to_inputs[goal.index];
      }
    }
  };
  count(root_goals);
  for (const Step& step : steps) {
    if (step.is_needed) {
      count(goals_of(step));
    }
  }
}

} // namespace torchlayers
