// What an operator's schema decides, worked out once an operator.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <atomic>
#include <optional>
#include <vector>

namespace torchlayers {

class JvpRule;
class VjpRule;
struct BatchingRule;

// What rules/ says of an operator; null where it says nothing.
struct OperatorRules {
  const JvpRule* jvp = nullptr;
  const VjpRule* vjp = nullptr;
  const BatchingRule* batching = nullptr;
  bool is_constant = false;
};

// The values that end with an operator's arguments, and then with its results.
using Args = torch::jit::Stack;
using torch::jit::drop;
using torch::jit::last;
using torch::jit::peek; // one of the last

struct Operator {
  explicit Operator(const c10::OperatorHandle& handle);
  Operator(const c10::OperatorHandle& handle, const OperatorRules& rules);

  // The facts of this operator. Computed at first sight, then looked up.
  static const Operator& of(const c10::OperatorHandle& handle);

  const c10::FunctionSchema& schema() const {
    return handle.schema();
  }
  // "aten::add_.Tensor"
  std::string name() const {
    return c10::toString(handle.operator_name());
  }

  c10::OperatorHandle handle;
  size_t num_args;
  size_t num_returns;

  // The first argument is written and returned, and no other argument aliases.
  bool is_in_place;
  // The operator without side effects that an in-place one is named after, if there is one.
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
  // Has a kernel made of other operators, which are what autocast looks at.
  bool is_composite;
  // torch's batching rule for it is to take it apart.
  bool is_composite_under_vmap;
  // Not torch's own: a kernel written in Python may apply an autograd.Function.
  bool is_custom;
  // Not of aten or prims, and with a derivative of its own.
  bool has_custom_autograd;
  // Not of aten or prims, with no derivative and not made of others.
  bool lacks_autograd;
  // Of torch.distributed, or along a named axis; torch's may write to its arguments without a word
  // of it in the schema.
  bool is_collective;
  // torch's own, of one result whose elements come from the arguments' at their places.
  bool is_pointwise;
  // Its results have no derivative by any argument.
  bool is_constant;
  // The result is a fresh tensor to the user though the schema says alias.
  // NOTE [Results that are always wrapped].
  bool always_wraps;
  // The result is the tensor that torch.tensor has just made, out of a layer's sight.
  bool lifts;
  // The result has no derivatives by its argument, whose memory it shares.
  bool detaches;
  // It makes a dual tensor, or takes one apart: what it does is not told by shapes.
  bool makes_dual;
  bool unpacks_dual;

  // What it does to tangents; null where torch's autograd is to tell. A rule from Python
  // may come at any time.
  mutable std::atomic<const JvpRule*> jvp_rule;
  // What it does to cotangents, likewise.
  mutable std::atomic<const VjpRule*> vjp_rule;
  // How it runs on a batch; null where torch's batching rule is to tell.
  mutable std::atomic<const BatchingRule*> batching_rule;

  // Which of NOTE [Types of nodes] its nodes have; -1 before the first.
  mutable std::atomic<int> node_type{-1};

  // The arguments, and whether there are results, that may hold tensors where the dispatcher does
  // not look for any. NOTE [Hidden tensors].
  std::vector<size_t> hidden_args;
  bool hides_results;

  // The arguments whose sizes or strides this operator may change.
  std::vector<size_t> written_args;
  // For each argument, the one result that may share its memory.
  std::vector<std::optional<size_t>> aliased_result;
};

} // namespace torchlayers
