#include "layers/functionalize/in_place_views.h"

#include <ATen/FunctionalTensorWrapper.h>
#include <c10/util/strides.h>

#include <optional>
#include <string>
#include <utility>

#include "core/args.h"
#include "core/aten_functions.h"
#include "core/keys.h"
#include "core/stack.h"
#include "core/trace/trace.h"
#include "layers/functionalize/views.h"

namespace torchlayers {
namespace {

using at::Tensor;

// transpose.int for transpose_: the operator that takes the same arguments and returns a view.
std::optional<c10::OperatorHandle> view_operator(const Operator& op) {
  const std::string& name = op.schema().name();
  for (const std::string& overload : {op.schema().overload_name(), std::string("int")}) {
    const auto found =
        c10::Dispatcher::singleton().findSchema({name.substr(0, name.size() - 1), overload});
    if (found && found->schema().arguments().size() == op.num_args &&
        found->schema().arguments()[0].alias_info() != nullptr && !found->schema().is_mutable()) {
      return found;
    }
  }
  return std::nullopt;
}

// The sizes that resize_ or resize_as_ asks for, if they can be viewed in the tensor's memory.
std::optional<at::DimVector> sizes_within(const Operator& op, const Args& args, const Tensor& x) {
  const c10::IValue& given = peek(args, 1, op.num_args);
  if (!peek(args, 2, op.num_args).isNone() || !has_known_strides(x)) {
    return std::nullopt;
  }
  at::DimVector sizes;
  if (given.isIntList()) {
    sizes = given.toDimVector();
  } else if (given.isTensor() && has_known_strides(given.toTensor())) {
    sizes = given.toTensor().sizes();
  } else {
    return std::nullopt;
  }
  const bool fits = x.storage_offset() + c10::multiply_integers(sizes) <= whole_of(x).numel();
  return fits ? std::optional(sizes) : std::nullopt;
}

// The operator that views the tensor so, with its arguments; nullopt if that is left to torch.
std::optional<std::pair<c10::OperatorHandle, Args>> view_call(
    const Operator& op, const Args& args, const Tensor& x) {
  const std::string& name = op.schema().name();
  if (name == "aten::resize_" || name == "aten::resize_as_") {
    static const c10::OperatorHandle as_strided =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::as_strided", "");
    const auto sizes = sizes_within(op, args, x);
    if (!sizes) {
      return std::nullopt;
    }
    const at::DimVector strides = c10::contiguous_strides(*sizes);
    return std::pair(
        as_strided, Args{x, at::IntArrayRef(*sizes), at::IntArrayRef(strides), c10::IValue()});
  }
  const auto view = view_operator(op);
  return view ? std::optional(std::pair(*view, last(args, op.num_args).vec())) : std::nullopt;
}

} // namespace

bool view_in_place(const Operator& op, Args& args, const Layer& layer) {
  if (!op.handle.hasTag(at::Tag::inplace_view) || op.detaches_in_place) {
    return false;
  }
  const Tensor x = peek(args, 0, op.num_args).toTensor();
  auto call = is_functional(x) ? view_call(op, args, x) : std::nullopt;
  if (!call) {
    return false;
  }
  trace("decompose", op, layer);
  thread_keys() = Processing::of(layer)->keys_outside();
  auto& [view, results] = *call;
  view.callBoxed(&results);
  const Tensor& viewed = results[0].toTensor();
  c10::TensorImpl* impl = x.unsafeGetTensorImpl();
  impl->shallow_copy_from(viewed.getIntrusivePtr());
  drop(args, op.num_args);
  args.emplace_back(x);
  if (has_known_strides(viewed)) {
    lay_out_like(results, /*count=*/1, args);
  }
  return true;
}

} // namespace torchlayers
