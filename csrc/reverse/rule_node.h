// A node of autograd's graph that follows a cotangent rule of ours.
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
#include "reverse/packed.h"
#include "rules/vjp_call.h"

namespace torchlayers {

// NOTE [Nodes of ours]
// They are torch's own nodes to everybody: requires_grad, grad_fn, hooks and the engine know
// no difference. But what they save are values of the layers below, so that a reverse pass
// may run there, as ordinary operators, without its layer or after it (pass.cpp). A node
// saves only the tensors that its rule reads, and no tensor that knows the node: there are no
// cycles. Versions are those of the wrappers, which every write at this level bumps.
class RuleNode : public torch::autograd::Node {
 public:
  // The arguments end `args` and are of the layer's level or come from outside it.
  RuleNode(const Operator& op, const VjpRule& rule, const Args& args, const Layer& layer);

  // Where saved-tensor hooks are on: lets them see what the rule reads of the arguments, which are
  // those of the constructor. NOTE [Where a hook runs].
  void pack_args(const Args& args);

  // Keeps what the rule reads of the arguments, which end `values` as values of the layers below.
  void save_args(const Args& values);

  bool reads_results() const {
    return reads_.results.any();
  }
  // Keeps what the rule reads of the results, which end `wrapped` as tensors of the level.
  void save_results(Args results, const Args& wrapped);

  // On values of the layers below. The gradients are by target, undefined where not wanted.
  void vjp(
      at::ArrayRef<at::Tensor> cotangents,
      c10::function_ref<bool(size_t)> is_wanted,
      torch::autograd::variable_list& gradients);

  // The engine's way in, at whatever level it runs.
  torch::autograd::variable_list apply(torch::autograd::variable_list&& cotangents) override;

  void release_variables() override;
  std::string name() const override;

 private:
  // Of a tensor that is saved.
  struct Version {
    c10::VariableVersion counter;
    uint32_t saved;
  };

  void save_version(const at::Tensor& tensor);
  void check_is_intact() const;
  // What was saved, if hooks have packed it.
  std::optional<std::pair<Args, Args>> unpacked() const;
  // The saved values as tensors of the level again, with their places in the graph.
  std::pair<Args, Args> at_level() const;

  const Operator& op_;
  const VjpRule& rule_;
  int64_t level_;
  std::shared_ptr<bool> is_alive_; // the layer
  Reads reads_;
  Args args_;
  Args results_;
  c10::SmallVector<Target, 2> targets_;
  c10::SmallVector<Version, 3> versions_;
  std::unique_ptr<Packed> packed_; // null where nobody packs
  bool is_released_ = false;
};

// A node of the operator, with RuleNode's arguments.
NodePointer<RuleNode> make_rule_node(
    const Operator& op, const VjpRule& rule, const Args& args, const Layer& layer);

// The node as one of ours; null if it is none. For those that make_rule_node made.
RuleNode* rule_node_of(torch::autograd::Node& node);

} // namespace torchlayers
