#include "rules/batching/in_place.h"

#include <ATen/core/Tensor.h>
#include <ATen/functorch/BatchedTensorImpl.h>

#include "core/trace.h"

namespace torchlayers {
namespace {

bool torch_has_rule_of(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  return op.hasKernelForDispatchKey(DispatchKey::FuncTorchBatched) ||
         op.hasKernelForDispatchKey(DispatchKey::FuncTorchBatchedDecomposition) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
}

// Its functional one runs on a batch, and draws nothing at random.
bool has_rule_of_ours(const c10::OperatorHandle& functional) {
  const Operator& op = Operator::of(functional);
  return op.is_pointwise || op.batching_rule != nullptr;
}

} // namespace

bool write_functional(const Operator& op, Args& args, const Layer& layer) {
  if (!op.is_in_place || !op.functional || torch_has_rule_of(op.handle) ||
      !has_rule_of_ours(*op.functional)) {
    return false;
  }
  const at::Tensor x = peek(args, 0, op.num_args).toTensor();
  if (!layer.follows(x)) {
    return false; // for torch to refuse
  }
  Args written = last(args, op.num_args).vec();
  written[0] = x.clone(); // which a derivative may need, as it was
  op.functional->callBoxed(&written);
  const at::Tensor& result = written[0].toTensor();
  if (!c10::canCast(result.scalar_type(), x.scalar_type()) || result.sym_sizes() != x.sym_sizes()) {
    return false; // likewise
  }
  trace("rule", op, layer);
  x.copy_(result);
  drop(args, op.num_args);
  args.emplace_back(x);
  return true;
}

} // namespace torchlayers
