#include "layers/functionalize/writes.h"

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/MemoryOverlap.h>

#include "core/args.h"
#include "core/errors.h"
#include "layers/functionalize/views.h"
#include "values/copy.h"
#include "values/functional.h"

namespace torchlayers {
namespace {

using at::Tensor;
namespace functionalization = at::functionalization::impl;

void refuse_captured(const Operator& op, const Args& args, const Layer& layer) {
  if (any_tensor(args, op.num_args, [](const Tensor& each) { return is_functional(each); })) {
    raise_as(
        ErrorClass::InPlace,
        "{} can't let {} write to a tensor from outside the function: it returns what is written "
        "to its arguments, and nothing else outside may change. Pass the tensor to the function as "
        "an argument, or write to a clone() of it.",
        layer.name(),
        op.name());
  }
}

// The errors of the in-place operator, which the functional one does not raise.
void check_fits(const Tensor& result, const Tensor& written) {
  TORCH_CHECK(
      result.sizes() == written.sizes(),
      "output with shape ",
      written.sizes(),
      " doesn't match the broadcast shape ",
      result.sizes());
  check_can_copy(written, result);
}

} // namespace

bool write_to_functional(const Operator& op, Args& args, const Layer& layer) {
  if (!op.functional || op.is_composite || op.handle.hasTag(at::Tag::inplace_view)) {
    return false;
  }
  const Tensor written = peek(args, 0, op.num_args).toTensor();
  if (!is_functional(written)) {
    refuse_captured(op, args, layer);
    return false;
  }
  if (any_tensor(args, op.num_args, [](const Tensor& each) { return !has_known_strides(each); })) {
    return false;
  }
  // The tangent of an expanded tensor is written to like this, by torch itself.
  if (at::has_internal_overlap(written) == at::MemOverlap::Yes) {
    return false;
  }
  Args values = last(args, op.num_args).vec();
  change_tensors(
      values, op.num_args, [](const Tensor& tensor, size_t) { return without_functional(tensor); });
  {
    const at::AutoDispatchSkipFunctionalize below;
    op.functional->callBoxed(&values);
  }
  const Tensor result = values[0].toTensor();
  check_fits(result, written);
  functionalization::replace_(written, result);
  functionalization::commit_update(written);
  functionalization::sync(written);
  drop(args, op.num_args);
  args.emplace_back(written);
  return true;
}

} // namespace torchlayers
