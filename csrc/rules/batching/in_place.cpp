#include "rules/batching/in_place.h"

#include <ATen/functorch/BatchedTensorImpl.h>

#include <algorithm>

#include "core/aten_functions.h"
#include "core/below.h"
#include "core/errors.h"
#include "core/trace/trace.h"
#include "values/strided_region.h"
#include "values/value_inside.h"

namespace torchlayers {
namespace {

bool torch_has_rule_of(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  return op.hasKernelForDispatchKey(DispatchKey::FuncTorchBatched) ||
         op.hasKernelForDispatchKey(DispatchKey::FuncTorchBatchedDecomposition) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
}

} // namespace

bool write_functional(const Operator& op, Args& args, const Layer& layer) {
  if (!op.is_in_place || !op.functional || op.is_random || torch_has_rule_of(op.handle)) {
    return false;
  }
  const at::Tensor x = peek(args, 0, op.num_args).toTensor();
  if (!layer.follows(x)) {
    return false; // torch raises an error
  }
  Args written = last(args, op.num_args).vec();
  written[0] = x.clone(); // a derivative may need the original value
  op.functional->callBoxed(&written);
  const at::Tensor& result = written[0].toTensor();
  if (!c10::canCast(result.scalar_type(), x.scalar_type()) || result.sym_sizes() != x.sym_sizes()) {
    return false; // torch raises an error
  }
  trace("rule", op, layer);
  x.copy_(result);
  drop(args, op.num_args);
  args.emplace_back(x);
  return true;
}

bool resize_samples(const Operator& op, Args& args, const Layer& layer) {
  if (!op.is_in_place || op.schema().name() != "aten::resize_") {
    return false;
  }
  const at::Tensor x = peek(args, 0, op.num_args).toTensor();
  auto* batched = at::functorch::maybeGetBatchedImpl(x);
  if (batched == nullptr || batched->level() != layer.level()) {
    return false;
  }
  const at::Tensor value = batched->value();
  if (batched->bdim() != 0 || !value.is_contiguous() || !peek(args, 2, op.num_args).isNone()) {
    raise_as(
        ErrorClass::BatchedOperator,
        "{} can't run {} on a batched tensor that is not contiguous. Use x.reshape(-1)[:n], or "
        "resize x.contiguous().",
        layer.name(),
        op.name());
  }
  trace("rule", op, layer);
  auto sizes = peek(args, 1, op.num_args).toIntVector();
  const int64_t numel = c10::multiply_integers(sizes);
  const int64_t count = std::min(numel, x.numel());
  sizes.insert(sizes.begin(), value.size(0));
  {
    const Below below(layer, op);
    const at::Tensor before = value.reshape({value.size(0), x.numel()}).clone();
    value.resize_(sizes);
    value.view({value.size(0), numel}).narrow(1, 0, count).copy_(before.narrow(1, 0, count));
  }
  batched->refreshTensorMetadata();
  drop(args, op.num_args);
  args.emplace_back(x);
  return true;
}

bool fill_samples(const Operator& op, Args& args, const Layer& layer) {
  if (!op.is_in_place || op.schema().name() != "aten::fill_" ||
      op.schema().overload_name() != "Tensor") {
    return false;
  }
  const at::Tensor x = peek(args, 0, op.num_args).toTensor();
  const at::Tensor y = peek(args, 1, op.num_args).toTensor();
  if (!layer.follows(x) || y.dim() != 0) {
    return false; // torch raises an error
  }
  trace("rule", op, layer);
  const c10::StorageImpl* memory = memory_of(x);
  const bool may_be_written_over = memory == nullptr || memory == memory_of(y);
  x.copy_(may_be_written_over ? y.clone() : y);
  drop(args, op.num_args);
  args.emplace_back(x);
  return true;
}

bool detach_samples(const Operator& op, Args& args, const Layer& layer) {
  if (!op.detaches_in_place) {
    return false;
  }
  const at::Tensor x = peek(args, 0, op.num_args).toTensor();
  if (!layer.follows(x)) {
    return false;
  }
  trace("rule", op, layer);
  detach_value_inside(x, layer, op);
  return true;
}

} // namespace torchlayers
