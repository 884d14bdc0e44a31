#include "reverse/pass.h"

#include <ATen/ops/ones_like.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>

#include "core/modes.h"
#include "core/stack.h"
#include "core/trace.h"
#include "reverse/nodes.h"
#include "reverse/rule_node.h"
#include "rules/rule.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

bool is_watched(Node& node) {
  return !node.pre_hooks().empty() || !node.post_hooks().empty() ||
         !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty();
}

bool is_on_cpu(const Node& node) {
  for (uint32_t i = 0; i < node.num_inputs(); ++i) {
    const auto& metadata = node.input_metadata(i);
    if (!metadata.was_default_constructed() && !metadata.device().is_cpu()) {
      return false;
    }
  }
  return true;
}

void accumulate(at::Tensor& sum, at::Tensor gradient) {
  sum = sum.defined() ? sum_of({sum, gradient}) : std::move(gradient);
}

// Where an edge leads: to no one who asks, to an input, or to a step.
struct Goal {
  enum Kind { Nowhere, Input, Step } kind = Nowhere;
  uint32_t index = 0;
};

struct Step {
  Node* node;
  RuleNode* rule; // null if the node is torch's own
  uint32_t first_goal;
  uint32_t first_cotangent;
  bool is_needed;
};

// The graph from the outputs to the inputs, if it is plain.
class Plan {
 public:
  // False where the engine has to run.
  bool make(const VjpTask& task) {
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
  const Edge& root(size_t output) const {
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
  bool reach(const Edge& edge, std::vector<Goal>& goals) {
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
    if (is_watched(*node) || !is_on_cpu(*node)) {
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

  uint64_t recorded(uint32_t step) const {
    return steps_[step].node->sequence_nr();
  }

  // The last recorded first. False if that is not the graph's order.
  bool sort() {
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

  void mark_needed() {
    for (auto i = order_.rbegin(); i != order_.rend(); ++i) {
      Step& step = steps_[*i];
      for (size_t edge = 0; edge < step.node->num_outputs() && !step.is_needed; ++edge) {
        step.is_needed = leads_on(goal(step, edge));
      }
    }
  }

  // torch's own nodes then ask the engine's task what of theirs is wanted, which is another's.
  const bool is_inside_engine_ = torch::autograd::get_current_graph_task_id() != -1;
  std::vector<Edge> leaves_; // which nobody else may hold
  ska::flat_hash_map<Node*, Goal> goals_of_nodes_;
  std::vector<Step> steps_;
  std::vector<Goal> goals_;
  std::vector<Goal> root_goals_;
  std::vector<Edge> roots_;
  std::vector<uint32_t> order_;
  uint32_t num_cotangents_ = 0;
  bool has_nodes_of_torchs_ = false;
};

// While it lives, the thread is below the layer, if there is one.
class BelowLayer {
 public:
  BelowLayer(GradLayer& layer, bool create_graph)
      : processing_(layer),
        below_(layer),
        modes_(layer.modes_below({create_graph, Modes::of_thread().forward_grad})) {}

 private:
  Processing processing_;
  WithoutTop below_;
  WithModes modes_;
};

// The cotangents as the pass starts with them; false where the engine has to look at them.
bool start(const VjpTask& task, std::vector<at::Tensor>& cotangents) {
  for (size_t i = 0; i < task.outputs.size(); ++i) {
    const at::Tensor& output = task.outputs[i];
    if (output.layout() != at::kStrided || output.is_nested()) {
      return false;
    }
    if (!task.cotangents.empty()) {
      const at::Tensor value = without_dead_wrappers(task.cotangents[i]);
      if (value.scalar_type() != output.scalar_type() || value.device() != output.device() ||
          value.layout() != at::kStrided || task.layer != nullptr) {
        return false;
      }
      cotangents.push_back(value);
    } else if (output.dim() != 0 || output.is_complex()) {
      return false;
    }
  }
  return true;
}

class Pass {
 public:
  Pass(const VjpTask& task, const Plan& plan)
      : task_(task), plan_(plan), cotangents_(plan.num_cotangents()), found_(task.inputs.size()) {}

  std::vector<at::Tensor> run(std::vector<at::Tensor> given) {
    go_below();
    for (size_t i = 0; i < task_.outputs.size(); ++i) {
      const at::Tensor output = value_of(task_.outputs[i]);
      at::Tensor cotangent = given.empty() ? at::ones_like(output) : std::move(given[i]);
      if (plan_.has_nodes_of_torchs()) {
        cotangent = batched_like(cotangent, output);
      }
      deliver(plan_.root_goal(i), plan_.root(i), std::move(cotangent));
    }
    for (uint32_t i : plan_.order()) {
      const Step& step = plan_.step(i);
      if (step.is_needed) {
        run(step);
      }
    }
    return std::move(found_);
  }

 private:
  at::Tensor value_of(const at::Tensor& tensor) const {
    return task_.layer != nullptr ? unwrap(tensor, task_.layer->level())
                                  : without_dead_wrappers(tensor);
  }

  void go_below() {
    if (task_.layer != nullptr && !below_) {
      below_.emplace(*task_.layer, task_.create_graph);
    }
  }

  void deliver(const Goal& goal, const Edge& edge, at::Tensor gradient) {
    if (goal.kind == Goal::Input) {
      accumulate(found_[goal.index], std::move(gradient));
    } else if (goal.kind == Goal::Step) {
      accumulate(
          cotangents_[plan_.step(goal.index).first_cotangent + edge.input_nr], std::move(gradient));
    }
  }

  void run(const Step& step) {
    const auto begin = cotangents_.begin() + step.first_cotangent;
    const auto end = begin + step.node->num_inputs();
    const bool any =
        std::any_of(begin, end, [](const at::Tensor& input) { return input.defined(); });
    if (any) {
      if (step.rule != nullptr) {
        const auto is_wanted = [&](size_t i) { return plan_.leads_on(plan_.goal(step, i)); };
        step.rule->vjp(
            at::ArrayRef<at::Tensor>(&*begin, &*begin + (end - begin)), is_wanted, gradients_);
        std::fill(begin, end, at::Tensor());
      } else {
        gradients_ = run_node(
            *step.node,
            variable_list(std::make_move_iterator(begin), std::make_move_iterator(end)));
      }
      go_below(); // where they are added up
      for (size_t i = 0; i < gradients_.size(); ++i) {
        deliver(plan_.goal(step, i), step.node->next_edge(i), std::move(gradients_[i]));
      }
    }
    if (!task_.retain_graph) {
      step.node->release_variables();
    }
  }

  // torch's own, at the layer's level.
  variable_list run_node(Node& node, variable_list&& inputs) {
    below_.reset();
    const auto each = [&](variable_list& tensors, const auto& change) {
      for (at::Tensor& tensor : tensors) {
        if (tensor.defined() && task_.layer != nullptr) {
          tensor = change(tensor);
        }
      }
    };
    each(inputs, [&](const at::Tensor& value) {
      return wrap(value, *task_.layer, /*is_immutable=*/false);
    });
    at::AutoGradMode grad_mode(task_.create_graph);
    variable_list gradients = node(std::move(inputs));
    torch::autograd::validate_outputs(
        node.next_edges(), gradients, [&](const std::string& message) {
          return "torchlayers: " + node.name() + " returned an invalid gradient: " + message;
        });
    each(gradients, [&](const at::Tensor& tensor) { return unwrap(tensor, task_.layer->level()); });
    return gradients;
  }

  const VjpTask& task_;
  const Plan& plan_;
  std::vector<at::Tensor> cotangents_;
  std::vector<at::Tensor> found_;
  variable_list gradients_; // of the step that runs
  std::optional<BelowLayer> below_;
};

// The levels that a tensor is batched at, a bit each.
uint64_t batched_levels(const at::Tensor& tensor) {
  uint64_t levels = 0;
  at::Tensor value = tensor;
  while (true) {
    if (const auto* batched = at::functorch::maybeGetBatchedImpl(value)) {
      levels |= uint64_t{1} << batched->level();
      value = at::Tensor(batched->value()); // a copy: `batched` lives in `value`
    } else if (const auto* wrapper = wrapper_of(value)) {
      value = at::Tensor(wrapper->value());
    } else {
      return levels;
    }
  }
}

} // namespace

at::Tensor batched_like(const at::Tensor& cotangent, const at::Tensor& output) {
  const uint64_t levels = batched_levels(output);
  if (levels == 0 || (levels & ~batched_levels(cotangent)) == 0 ||
      cotangent.scalar_type() != output.scalar_type() || output.layout() != at::kStrided) {
    return cotangent;
  }
  return cotangent + at::full_like(output, -0.0); // which leaves a zero's sign as it is
}

std::optional<std::vector<at::Tensor>> vjp_below(const VjpTask& task) {
  std::vector<at::Tensor> given;
  if (torch::autograd::AnomalyMode::is_enabled() || !start(task, given)) {
    return std::nullopt;
  }
  Plan plan;
  if (!plan.make(task)) {
    return std::nullopt;
  }
  if (C10_UNLIKELY(tracing)) {
    trace_vjp("torchlayers", task.layer);
  }
  std::optional<at::AutoGradMode> grad_mode;
  if (task.layer == nullptr) {
    grad_mode.emplace(task.create_graph);
  }
  return Pass(task, plan).run(std::move(given));
}

} // namespace torchlayers
