#include "reverse/pass.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>

#include "core/aten_functions.h"
#include "core/below.h"
#include "core/skip_autograd.h"
#include "core/trace/trace.h"
#include "reverse/anomaly.h"
#include "reverse/node_hooks.h"
#include "reverse/node_kinds.h"
#include "reverse/node_order.h"
#include "reverse/streams.h"
#include "rules/rule.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

thread_local uint64_t running = 0;

class Numbered {
 public:
  Numbered() : outer_(running) {
    static std::atomic<uint64_t> last{0};
    running = ++last;
  }
  ~Numbered() {
    running = outer_;
  }
  Numbered(const Numbered&) = delete;
  Numbered& operator=(const Numbered&) = delete;

 private:
  uint64_t outer_;
};

// Finds the initial cotangents; returns false if the engine has to handle them.
bool start(const VjpTask& task, std::vector<at::Tensor>& cotangents) {
  for (size_t i = 0; i < task.outputs.size(); ++i) {
    const at::Tensor& output = task.outputs[i];
    if (!is_strided(output)) {
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
      : task_(task),
        plan_(plan),
        cotangents_(plan.num_cotangents),
        found_(task.inputs.size()),
        waiting_for_(plan.edges_to_inputs) {}

  std::vector<at::Tensor> run(std::vector<at::Tensor> given) {
    go_below();
    for (size_t i = 0; i < task_.outputs.size(); ++i) {
      const at::Tensor output = value_of(task_.outputs[i]);
      at::Tensor cotangent = given.empty() ? at::ones_like(output) : std::move(given[i]);
      if (plan_.has_nodes_of_torchs) {
        cotangent = batched_like(cotangent, output);
      }
      deliver(plan_.root_goals[i], plan_.roots[i], std::move(cotangent), std::nullopt);
    }
    finish_inputs(plan_.root_goals);
    for (uint32_t i : plan_.order) {
      const Step& step = plan_.steps[i];
      if (step.is_needed) {
        is_anomaly_mode() ? run_in_anomaly_mode(step) : run(step);
        finish_inputs(plan_.goals_of(step));
      }
    }
    return std::move(found_);
  }

 private:
  using Cotangents = variable_list::iterator;

  // While it lives, user code runs: at the layer's level, which leaves its backward phase
  // meanwhile, because the code may itself differentiate.
  class UsersTurn {
   public:
    explicit UsersTurn(Pass& pass) : layer_(pass.task_.layer) {
      pass.below_.reset();
      grad_mode_.emplace(pass.task_.create_graph);
      backwards_ = layer_ != nullptr ? layer_->leave_backward() : 0;
    }
    ~UsersTurn() {
      if (layer_ != nullptr) {
        layer_->return_to_backward(backwards_);
      }
    }
    UsersTurn(const UsersTurn&) = delete;
    UsersTurn& operator=(const UsersTurn&) = delete;

   private:
    Layer* layer_;
    int backwards_;
    std::optional<at::AutoGradMode> grad_mode_;
  };

  at::Tensor value_of(const at::Tensor& tensor) const {
    return task_.layer != nullptr ? unwrap(tensor, task_.layer->level())
                                  : without_dead_wrappers(tensor);
  }

  void go_below() {
    if (task_.layer != nullptr && !below_) {
      below_.emplace(*task_.layer, Modes{task_.create_graph, Modes::of_thread().forward_grad});
    }
  }

  at::Tensor at_level(const at::Tensor& value) const {
    return task_.layer != nullptr && value.defined()
               ? wrap(value, *task_.layer, /*is_immutable=*/false)
               : value;
  }
  variable_list at_level(Cotangents begin, Cotangents end) const {
    variable_list tensors;
    tensors.reserve(static_cast<size_t>(end - begin));
    std::transform(begin, end, std::back_inserter(tensors), [&](const at::Tensor& value) {
      return at_level(value);
    });
    return tensors;
  }

  // Replaces cotangents or gradients by those that hooks have returned.
  void take_from_hooks(const variable_list& made, Cotangents values) {
    go_below();
    for (const at::Tensor& tensor : made) {
      at::Tensor& value = *values++;
      at::Tensor found = tensor.defined() ? value_of(tensor) : tensor;
      value = plan_.has_nodes_of_torchs && found.defined() && value.defined()
                  ? batched_like(found, value)
                  : std::move(found);
    }
  }

  void deliver(const Goal& goal, const Edge& edge, at::Tensor gradient, const OnStream& from) {
    if (goal.kind == Goal::Nowhere) {
      return;
    }
    OnStream stream;
    if (plan_.has_streams && gradient.defined()) {
      stream = hand_over(
          gradient, from, goal.kind == Goal::Step ? stream_of(*edge.function) : std::nullopt);
    }
    accumulate(
        goal.kind == Goal::Input
            ? found_[goal.index]
            : cotangents_[plan_.steps[goal.index].first_cotangent + edge.input_nr],
        std::move(gradient),
        stream);
  }

  void run(const Step& step) {
    const auto begin = cotangents_.begin() + step.first_cotangent;
    const auto end = begin + step.node->num_inputs();
    const bool is_reached =
        std::any_of(begin, end, [](const at::Tensor& input) { return input.defined(); });
    const OnStream stream = plan_.has_streams ? stream_of(*step.node) : std::nullopt;
    {
      const c10::OptionalStreamGuard guard(stream);
      if (C10_UNLIKELY(is_watched(*step.node))) {
        run_watched(step, begin, end, is_reached);
      } else if (is_reached) {
        run_node(step, begin, end);
      } else {
        gradients_.clear();
      }
    }
    go_below(); // where gradients are added up
    for (size_t i = 0; i < gradients_.size(); ++i) {
      deliver(plan_.goal(step, i), step.node->next_edge(i), std::move(gradients_[i]), stream);
    }
    if (!task_.retain_graph) {
      step.node->release_variables();
    }
  }

  void run_in_anomaly_mode(const Step& step) {
    const Inducing inducing(*step.node);
    try {
      run(step);
    } catch (...) {
      say_where_it_was_called(*step.node);
      throw;
    }
  }

  void run_node(const Step& step, Cotangents begin, Cotangents end) {
    if (step.rule != nullptr) {
      const auto is_wanted = [&](size_t i) { return plan_.leads_on(plan_.goal(step, i)); };
      go_below();
      step.rule->vjp(
          at::ArrayRef<at::Tensor>(&*begin, &*begin + (end - begin)), is_wanted, gradients_);
      std::fill(begin, end, at::Tensor());
    } else {
      gradients_ = run_node_of_torchs(
          *step.node, variable_list(std::make_move_iterator(begin), std::make_move_iterator(end)));
    }
    if (is_anomaly_mode()) {
      check_for_nan(*step.node, gradients_);
    }
  }

  // Hooks may register others, or remove themselves.
  void run_watched(const Step& step, Cotangents begin, Cotangents end, bool is_reached) {
    Node& node = *step.node;
    variable_list cotangents;
    {
      const UsersTurn turn(*this);
      cotangents = at_level(begin, end);
      call_hooks_before(node, cotangents);
    }
    take_from_hooks(cotangents, begin);
    if (is_reached) {
      run_node(step, begin, end);
    } else {
      gradients_.assign(node.num_outputs(), at::Tensor());
    }
    if (!node.post_hooks().empty()) {
      variable_list gradients;
      {
        const UsersTurn turn(*this);
        gradients = at_level(gradients_.begin(), gradients_.end());
        call_hooks_after(node, gradients, cotangents);
      }
      take_from_hooks(gradients, gradients_.begin());
    }
  }

  // Finishes inputs among these goals. An input is finished as soon as every edge that leads to it
  // is done, as in the engine.
  void finish_inputs(at::ArrayRef<Goal> goals) {
    if (C10_LIKELY(waiting_for_.empty())) {
      return;
    }
    for (const Goal& goal : goals) {
      if (goal.kind == Goal::Input && --waiting_for_[goal.index] == 0) {
        finish(task_.inputs[goal.index], found_[goal.index]);
      }
    }
  }

  void finish(const at::Tensor& input, at::Tensor& gradient) {
    Node& leaf = *torch::autograd::impl::gradient_edge(input).function;
    if (is_watched_leaf(leaf)) {
      at::Tensor made;
      {
        const UsersTurn turn(*this);
        made = call_hooks_of_leaf(leaf, at_level(gradient));
      }
      gradient = made.defined() ? value_of(made) : made;
    }
  }

  // Runs a node of torch's own, at the layer's level.
  variable_list run_node_of_torchs(Node& node, variable_list&& inputs) {
    below_.reset();
    const Layer* layer = task_.layer;
    if (layer != nullptr) {
      change_defined(inputs, [&](const at::Tensor& value) {
        return wrap(value, *layer, /*is_immutable=*/false);
      });
    }
    at::AutoGradMode grad_mode(task_.create_graph);
    variable_list gradients = node(std::move(inputs));
    torch::autograd::validate_outputs(
        node.next_edges(), gradients, [&](const std::string& message) {
          return "torchlayers: " + node.name() + " returned an invalid gradient: " + message;
        });
    if (layer != nullptr) {
      change_defined(
          gradients, [&](const at::Tensor& tensor) { return unwrap(tensor, layer->level()); });
    }
    return gradients;
  }

  const Numbered numbered_;
  const VjpTask& task_;
  const Plan& plan_;
  std::vector<at::Tensor> cotangents_;
  std::vector<at::Tensor> found_;
  std::vector<uint32_t> waiting_for_; // edges to each input; empty without hooks
  variable_list gradients_;           // of the current step
  std::optional<Below> below_;
};

} // namespace

uint64_t number_of_pass() {
  return running;
}

at::Tensor batched_like(const at::Tensor& cotangent, const at::Tensor& output) {
  const auto levels = batched_levels(output);
  if (levels.none() || (levels & ~batched_levels(cotangent)).none() ||
      cotangent.scalar_type() != output.scalar_type() || output.layout() != at::kStrided) {
    return cotangent;
  }
  return cotangent + at::full_like(output, -0.0); // keeps the sign of a zero
}

std::optional<std::vector<at::Tensor>> vjp_below(const VjpTask& task) {
  std::vector<at::Tensor> given;
  if (!start(task, given)) {
    return std::nullopt;
  }
  Plan plan;
  if (!plan.make(task)) {
    return std::nullopt;
  }
  trace_vjp("torchlayers", task.layer);
  const c10::OptionalDeviceGuard device(plan.has_streams ? std::nullopt : plan.device());
  std::optional<at::AutoGradMode> grad_mode;
  if (task.layer == nullptr) {
    grad_mode.emplace(task.create_graph);
  }
  return Pass(task, plan).run(std::move(given));
}

} // namespace torchlayers
