#include "values/escaped.h"

#include <ATen/FunctionalTensorWrapper.h>

#include <string_view>

#include "core/args.h"
#include "core/errors.h"
#include "core/keys.h"
#include "core/stack.h"
#include "values/batched.h"
#include "values/functional.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

// A tensor's keys are protected in torch; an explicit instantiation may name them.
template <auto Keys>
struct RevealKeys {
  friend DispatchKeySet& keys_of(c10::TensorImpl& impl) {
    return impl.*Keys;
  }
};
template struct RevealKeys<&c10::TensorImpl::key_set_>;
DispatchKeySet& keys_of(c10::TensorImpl& impl);

void refuse_batched(const Operator& op, const at::Tensor& tensor) {
  const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
  const uint64_t number = batched != nullptr ? number_of(*batched) : 0;
  if (number == 0) {
    return; // torch's kind, which does not identify its vmap
  }
  const Layer* layer = layer_at(batched->level());
  if (layer == nullptr || layer->number() != number) {
    raise_as(
        ErrorClass::EscapedTensor,
        "a tensor batched by vmap (level {}) was used by {} outside that transform, which has "
        "ended or is another thread's. Return it from the function instead of keeping it.",
        batched->level(),
        op.name());
  }
}

void refuse_custom(const Operator& op, const at::Tensor& tensor) {
  if (is_of_custom_layer(tensor)) {
    raise_as(
        ErrorClass::EscapedTensor,
        "{} was used by {} below its layer, or on another thread. A layer's rules compute with the "
        "`value` and the `parts` of a LayerTensor, not with the tensor.",
        described(tensor),
        op.name());
  }
}

} // namespace

void settle_escaped(const Operator& op, Args& args) {
  change_tensors(args, op.num_args, [&op](const at::Tensor& tensor, size_t) {
    const at::Tensor value = without_dead_wrappers(without_ended_functionalize(tensor));
    refuse_batched(op, value);
    refuse_custom(op, value);
    return value;
  });
}

void refuse_wrapped(const Operator& op, const Args& args) {
  constexpr DispatchKeySet wrapped(
      {DispatchKey::FuncTorchGradWrapper,
       DispatchKey::FuncTorchBatched,
       DispatchKey::Functionalize});
  const DispatchKeySet off = thread_keys().excluded() & wrapped;
  const auto has_no_memory = [&](const at::Tensor& tensor) {
    return off.has_any(tensor.key_set());
  };
  if (!any_tensor(args, op.num_args, has_no_memory)) {
    return;
  }
  const std::string_view name = op.schema().name();
  if (name.ends_with("_like") || name.find("::new_") != std::string_view::npos) {
    return;
  }
  raise_as(
      ErrorClass::EscapedTensor,
      "{} was called on a tensor of a transform where transforms are off, as in rules about "
      "sparsity patterns. Compute what depends on values outside of it, or read them by "
      "torchlayers.debug_unwrap.",
      op.name());
}

void add_front_key(const at::Tensor& tensor) {
  if (at::functionalization::impl::isFunctionalTensor(tensor) || wrapper_of(tensor) != nullptr) {
    auto& keys = keys_of(*tensor.unsafeGetTensorImpl());
    keys = keys.add(kFront);
  }
}

} // namespace torchlayers
