#include "layers/functionalize/functionalize.h"

#include <ATen/FunctionalTensorWrapper.h>

#include <algorithm>

#include "core/args.h"
#include "core/aten_functions.h"
#include "core/below.h"
#include "core/errors.h"
#include "core/keys.h"
#include "core/skip_autograd.h"
#include "core/stack.h"
#include "core/trace/trace.h"
#include "layers/custom.h"
#include "layers/functionalize/detach.h"
#include "layers/functionalize/history.h"
#include "layers/functionalize/in_place_views.h"
#include "layers/functionalize/views.h"
#include "layers/functionalize/writes.h"
#include "values/escaped.h"
#include "values/functional.h"
#include "values/wrapper.h"

namespace torchlayers {

namespace functionalization = at::functionalization::impl;

namespace {

// The number of layers that are processing an operator on this thread.
thread_local int layers_at_work = 0;

struct AtWork {
  AtWork() {
    ++layers_at_work;
  }
  ~AtWork() {
    --layers_at_work;
  }
  AtWork(const AtWork&) = delete;
  AtWork& operator=(const AtWork&) = delete;
};

bool is_as_strided(const Operator& op) {
  return op.aliases && op.written_args.empty() && op.schema().name() == "aten::as_strided";
}

// Makes as_strided count from the start of the memory, of which a functional view is only a part.
void count_from_the_start(const Operator& op, Args& args) {
  const at::Tensor self = peek(args, 0, op.num_args).toTensor();
  c10::IValue& offset = peek(args, 3, op.num_args);
  if (is_functional(self)) {
    if (offset.isNone()) {
      offset = self.sym_storage_offset();
    }
    peek(args, 0, op.num_args) = whole_of(self);
  }
}

// A functional tensor of torch's can't pass a write to a result of make_dual or unpack_dual on to
// the tensors that it shares memory with.
void refuse_to_write_to_dual(const c10::Error& error, const Operator& op, const Layer& layer) {
  const std::string text = error.what_without_backtrace();
  const auto says = [&](const char* words) { return text.find(words) != std::string::npos; };
  if (says("Attempted to call _fw_primal()") || says("Attempted to call _make_dual()") ||
      says("cannot mutate tensors with frozen storage")) {
    raise(
        "{} can't run {}: it writes to a tensor that forward_ad.make_dual or unpack_dual returned, "
        "or that shares memory with one. Write to a clone() of it.",
        layer.name(),
        op.name());
  }
}

// The tangent that the functional tensor's value has on the layers below; torch looks for one on
// the wrapper.
at::Tensor tangent_below(const Operator& op, const Args& args, Layer& layer) {
  const at::Tensor dual = peek(args, 0, op.num_args).toTensor();
  const int64_t dual_level = peek(args, 1, op.num_args).toInt();
  if (!is_functional(dual)) {
    return {};
  }
  functionalization::sync(dual);
  const at::Tensor value = functionalization::from_functional_tensor(dual);
  const Below below(layer, op);
  return std::get<1>(at::_unpack_dual(value, dual_level));
}

// The kernels do not wrap results that are computed from captured tensors alone, and a functional
// tensor can't be written to those.
bool is_to_be_functional(const at::Tensor& tensor) {
  return !is_functional(tensor) && is_strided(tensor);
}

const CustomLayer* custom_layer_below(const Layer& layer) {
  return dynamic_cast<const CustomLayer*>(layer_at(layer.level() - 1));
}

} // namespace

at::functorch::DynamicLayer FunctionalizeLayer::mirrored(int64_t level) const {
  return at::functorch::DynamicLayer(
      at::functorch::TransformType::Functionalize,
      level,
      std::nullopt,
      std::nullopt,
      std::nullopt,
      std::nullopt,
      keeps_views_);
}

bool FunctionalizeLayer::decomposes(const Operator& op) const {
  if (!op.is_composite) {
    return false;
  }
  // torch has kernels for views and for some of the operators that write; it refuses other ones.
  if (op.aliases && !op.handle.hasKernelForDispatchKey(DispatchKey::Functionalize)) {
    return true;
  }
  // So are those that a layer in Python would decompose below: they may write inside.
  const CustomLayer* below = custom_layer_below(*this);
  return below != nullptr && below->decomposes(op);
}

bool FunctionalizeLayer::passes_whole(const Operator& op) const {
  if (!op.is_composite) {
    return false;
  }
  const CustomLayer* below = custom_layer_below(*this);
  return below != nullptr && below->takes_whole(op);
}

// Whether it is a functional tensor of this level.
bool FunctionalizeLayer::has_made(const at::Tensor& tensor) const {
  return is_functional(tensor) &&
         functionalization::unsafeGetFunctionalWrapper(tensor)->level() == level();
}

// Whether the operator views or writes to a tensor of a functionalize further down. Here it is a
// captured tensor: the layers in between decide whether it may be written to.
bool FunctionalizeLayer::aliases_captured(const Operator& op, const Args& args) const {
  bool any = false;
  if (op.aliases) {
    visit_tensors(args, op.num_args, [&](const at::Tensor& tensor, size_t i) {
      const bool is_aliased =
          op.aliased_result[i] || std::ranges::find(op.written_args, i) != op.written_args.end();
      any = any || (is_aliased && is_functional(tensor) && !has_made(tensor));
    });
  }
  return any;
}

// Such a tensor stays as it is, and so do its views.
void FunctionalizeLayer::send_captured(const Operator& op, Args& args) {
  change_tensors(args, op.num_args, [&](const at::Tensor& tensor, size_t) {
    return has_made(tensor) ? without_functional(tensor) : tensor;
  });
  trace("send_down", op, *this);
  call_below(op, args, /*are_plain=*/false);
}

// NOTE [Views that overlap]
void FunctionalizeLayer::view_memory(Args views, const Operator& op, Args& args) {
  trace("decompose", op, *this);
  const at::Tensor of = peek(args, 0, op.num_args).toTensor();
  thread_keys() = Processing::of(*this)->keys_outside();
  change_tensors(views, op.num_returns, [&](const at::Tensor& view, size_t) {
    return of.as_strided_symint(view.sym_sizes(), view.sym_strides(), view.sym_storage_offset());
  });
  drop(args, op.num_args);
  args.insert(args.end(), views.begin(), views.end());
}

// torch's functionalization kernels would decompose it.
void FunctionalizeLayer::send_whole(const Operator& op, Args& args) {
  change_tensors(args, op.num_args, [](const at::Tensor& tensor, size_t) {
    return without_functional(tensor);
  });
  send_down(op, args);
  change_tensors(args, op.num_returns, [&](const at::Tensor& tensor, size_t) {
    if (!is_to_be_functional(tensor)) {
      return tensor;
    }
    at::Tensor result = made_functional(tensor, level());
    add_front_key(result);
    return result;
  });
}

void FunctionalizeLayer::switch_on() {
  // Two of them need another layer in between, which wraps the outer one's functional tensors.
  if (!mirror().empty() && mirror().back().key() == at::functorch::TransformType::Functionalize) {
    raise(
        "functionalize can't be applied directly inside functionalize (level {}), whose tensors "
        "are functional already. Apply it once.",
        mirror().back().layerId());
  }
}

void FunctionalizeLayer::process(const Operator& op, Args& args) {
  unwrap_dead_and_check(op, args, *this);
  if (passes_whole(op)) {
    send_whole(op, args);
    return;
  }
  if (aliases_captured(op, args)) {
    send_captured(op, args);
    return;
  }
  if (auto views = is_as_strided(op) ? std::nullopt : views_of_overlapping(op, args)) {
    view_memory(std::move(*views), op, args);
    return;
  }
  if (view_in_place(op, args, *this)) {
    return;
  }
  // Not where torch recomputes the value of a functional tensor, nor for an inner functionalize,
  // which can't wrap a tensor that is functional already.
  const bool makes_functional = !op.aliases && layers_at_work == 0 &&
                                !thread_keys().excluded().has(DispatchKey::Functionalize);
  const AtWork at_work;
  const KeptStrides strides(op, args);
  const DispatchKeySet own(DispatchKey::Functionalize);
  trace("torch", op, *this);
  allow_only(own, /*include=*/own);
  // A copy of a dual tensor is not a dual tensor.
  functionalization::FunctionalizationReapplyViewsGuard keep_views(
      keeps_views_ || op.unpacks_dual || op.makes_dual);
  if (is_as_strided(op)) {
    count_from_the_start(op, args);
  }
  std::optional<Unrecorded> unrecorded; // NOTE [Writes that are not recorded]
  if (!at::GradMode::is_enabled()) {
    unrecorded.emplace(op, args, level());
  }
  const at::Tensor tangent = op.unpacks_dual ? tangent_below(op, args, *this) : at::Tensor();
  const auto views = keeps_views_ ? std::nullopt : views_without_values(op, args);
  try {
    if (!write_to_functional(op, args, *this)) {
      op.handle.callBoxed(&args);
    }
  } catch (const c10::Error& error) {
    refuse_to_write_to_dual(error, op, *this);
    throw;
  }
  if (is_as_strided(op) && is_functional(peek(args, 0, 1).toTensor())) {
    allow_as_strided(peek(args, 0, 1).toTensor());
  }
  if ((op.detaches || op.detaches_in_place) && is_functional(peek(args, 0, 1).toTensor())) {
    detach_functional(peek(args, 0, 1).toTensor());
  }
  if (tangent.defined()) {
    const at::Tensor functional = made_functional(tangent, level());
    functionalization::freeze_functional_tensor(functional); // writes would not reach the dual
    peek(args, 1, op.num_returns) = functional;
  }
  change_tensors(args, op.num_returns, [&](const at::Tensor& tensor, size_t) {
    const bool is_made = makes_functional && is_to_be_functional(tensor);
    const at::Tensor result = is_made ? made_functional(tensor, level()) : tensor;
    if (is_functional(result)) {
      functionalization::unsafeGetFunctionalWrapper(result)->set_level(level());
      add_front_key(result);
    }
    return result;
  });
  if (unrecorded) {
    unrecorded->finish(args);
  }
  strides.restore();
  if (views) {
    lay_out_like(*views, op.num_returns, args);
  }
}

bool FunctionalizeLayer::follows(const at::Tensor& tensor) const {
  return is_functional(tensor);
}

void FunctionalizeLayer::send_down(const Operator& op, Args& args) {
  trace("send_down", op, *this);
  call_below(op, args, /*are_plain=*/false);
  // A functionalize further down makes new tensors functional, and a vmap in between returns them
  // as they are; this one couldn't make them functional once more. Nothing else refers to them.
  change_tensors(args, op.num_returns, [](const at::Tensor& tensor, size_t) {
    return without_functional(tensor);
  });
}

} // namespace torchlayers
