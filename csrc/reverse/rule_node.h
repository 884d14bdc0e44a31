// A node of autograd's graph that applies one of our cotangent rules.
#pragma once

#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/layer.h"
#include "core/operator.h"
#include "core/torch_versions.h"
#include "reverse/packed_residuals.h"
#include "rules/vjp_call.h"
#include "values/saved_version.h"

namespace torchlayers {

// NOTE [Nodes of ours]
// To all other code they are like torch's own nodes: requires_grad, grad_fn, hooks and the engine
// see no difference. But they save values of the layers below, so that a reverse pass may run
// there, as ordinary operators, without its layer or after it (pass.cpp). A node saves only the
// tensors that its rule reads, and no tensor that refers to the node: there are no cycles. Versions
// are those of the wrappers, which every write at this level bumps.
class RuleNode : public torch::autograd::Node {
 public:
  // The arguments are the last values of `args`, and are at the layer's level or from outside it.
  RuleNode(const Operator& op, const VjpRule& rule, const Args& args, const Layer& layer);
  ~RuleNode() override;

  // With saved-tensor hooks: passes them the arguments that the rule reads, which are those of the
  // constructor. NOTE [Where a hook runs].
  void pack_args(const Args& args);

  // Saves the arguments that the rule reads. `values` ends with the arguments as values of the
  // layers below.
  void save_args(const Args& values);

  bool reads_results() const {
    return reads_.results.any();
  }
  // Saves the results that the rule reads. `wrapped` ends with the results as tensors of the level.
  void save_results(Args results, const Args& wrapped);

  // On values of the layers below. There is a gradient per target, undefined where not wanted.
  void vjp(
      at::ArrayRef<at::Tensor> cotangents,
      c10::function_ref<bool(size_t)> is_wanted,
      torch::autograd::variable_list& gradients);

  // Called by the engine, at whatever level it runs.
  torch::autograd::variable_list apply(torch::autograd::variable_list&& cotangents) override;

  void release_variables() override;
  std::string name() const override;

 private:
  void save_version(const at::Tensor& tensor);
  void check_is_intact() const;
  // The saved values, if hooks have packed them.
  std::optional<std::pair<Args, Args>> unpacked() const;
  // The saved values as tensors of the level again, with their places in the graph.
  std::pair<Args, Args> at_level() const;

  const Operator& op_;
  const VjpRule& rule_;
  int64_t level_;
  std::shared_ptr<bool> is_alive_; // the layer's flag
  Reads reads_;
  Args args_;
  Args results_;
  c10::SmallVector<Target, 2> targets_;
  c10::SmallVector<SavedVersion, 3> versions_;
  std::unique_ptr<Packed> packed_; // null without hooks
  bool is_released_ = false;
};

// A node of the operator, with RuleNode's arguments.
NodePointer<RuleNode> make_rule_node(
    const Operator& op, const VjpRule& rule, const Args& args, const Layer& layer);

// The node as one of ours; null if make_rule_node did not make it.
RuleNode* rule_node_of(torch::autograd::Node& node);

} // namespace torchlayers
