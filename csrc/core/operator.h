// Facts about an operator that follow from its schema, computed once per operator.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <atomic>
#include <optional>
#include <vector>

namespace torchlayers {

class JvpRule;
class VjpRule;
class SmallKernel;
struct BatchingRule;

struct Operator;

// A stack that ends with an operator's arguments, and after the call with its results.
using Args = torch::jit::Stack;
using torch::jit::drop;
using torch::jit::last;
using torch::jit::peek; // one of the last

// Calls an operator from others that plain autograd can differentiate, if need be. Otherwise does
// nothing and returns false. NOTE [Writes below all layers].
using PlainForm = bool (*)(const Operator& op, Args& args);

// What rules/ has for an operator; null where there is none.
struct OperatorRules {
  const JvpRule* jvp = nullptr;
  const VjpRule* vjp = nullptr;
  const BatchingRule* batching = nullptr;
  const SmallKernel* small_kernel = nullptr;
  bool is_constant = false;
  PlainForm plain_form = nullptr;
};

struct Operator {
  explicit Operator(const c10::OperatorHandle& handle);
  Operator(const c10::OperatorHandle& handle, const OperatorRules& rules);

  // The facts about this operator, computed on first use and then cached.
  static const Operator& of(const c10::OperatorHandle& handle);

  const c10::FunctionSchema& schema() const {
    return handle.schema();
  }
  // "aten::add_.Tensor"
  std::string name() const {
    return c10::toString(handle.operator_name());
  }

  // Calls the operator with the last values of `args`; below all layers of ours, by its plain form
  // if it has one, and below torch.func's too, by its small kernel.
  void call(Args& args) const;

  c10::OperatorHandle handle;
  size_t num_args;
  size_t num_returns;

  // The first argument is written and returned, and no other argument aliases.
  bool is_in_place;
  // The out-of-place operator that corresponds to an in-place one, if there is one.
  std::optional<c10::OperatorHandle> functional;
  // An argument is written, or a result may be a view of one.
  bool aliases;
  // Draws random numbers, at least with some arguments.
  bool is_random;
  // Reads a Python number out of a tensor (item, is_nonzero, _local_scalar_dense).
  bool reads_number;
  // torch.func's front key has a kernel of its own for it: a decomposition, or
  // random operators' checks. That kernel comes first; what it calls comes back.
  bool has_torch_func_kernel;
  // Has a kernel that calls other operators; autocast acts on those instead.
  bool is_composite;
  // torch's batching rule for it is to decompose it.
  bool is_composite_under_vmap;
  // Not torch's own: a kernel written in Python may apply an autograd.Function.
  bool is_custom;
  // Neither aten nor prims, and has its own derivative.
  bool has_custom_autograd;
  // Neither aten nor prims, with no derivative, and not composite.
  bool lacks_autograd;
  // A function of torch.special that torch marks as not differentiable, although it is.
  bool lacks_derivative;
  // A collective of torch.distributed, or along a named axis. torch's may write to their arguments
  // without declaring that in the schema.
  bool is_collective;
  // An aten operator with one result, each element of which depends on the arguments' elements at
  // the same position.
  bool is_pointwise;
  // Its results have no derivative with respect to any argument.
  bool is_constant;
  // To the user the result is a new tensor, although the schema declares an alias.
  // NOTE [Results that are always wrapped].
  bool always_wraps;
  // The result is the tensor that torch.tensor has just made, which no layer has seen.
  bool lifts;
  // The result has no derivative with respect to its argument, whose memory it shares.
  bool detaches;
  bool detaches_in_place;
  // Makes a dual tensor, or takes one apart: shapes alone do not describe its effect.
  bool makes_dual;
  bool unpacks_dual;

  // How it transforms tangents; null where torch's autograd decides. A rule from Python may be
  // registered at any time.
  mutable std::atomic<const JvpRule*> jvp_rule;
  // How it transforms cotangents, likewise.
  mutable std::atomic<const VjpRule*> vjp_rule;
  // How it runs on a batch; null where torch's batching rule decides.
  mutable std::atomic<const BatchingRule*> batching_rule;
  // Computes it on small plain tensors.
  const SmallKernel* small_kernel;
  // Calls it where autograd or torch.func records it.
  PlainForm plain_form;

  // The type of its autograd nodes, as in NOTE [Types of nodes]; -1 before the first node.
  mutable std::atomic<int> node_type{-1};

  // The arguments that may hold tensors where the dispatcher does not look for any, and whether
  // there are such results. NOTE [Hidden tensors].
  std::vector<size_t> hidden_args;
  bool hides_results;

  // The arguments whose sizes or strides this operator may change.
  std::vector<size_t> written_args;
  // For each argument, the one result that may share its memory.
  std::vector<std::optional<size_t>> aliased_result;
};

} // namespace torchlayers
