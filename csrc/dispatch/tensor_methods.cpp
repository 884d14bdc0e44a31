#include "dispatch/tensor_methods.h"

#include <ATen/core/VariableHooksInterface.h>
#include <torch/csrc/autograd/edge.h>

#include <utility>

#include "core/errors.h"
#include "core/saved_stack.h"
#include "core/stack.h"
#include "layers/functionalize/views.h"
#include "layers/level_views.h"
#include "values/without_strides.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using at::Tensor;
using at::TensorBase;

// While it lives, the thread's stack is empty.
class WithoutStack {
 public:
  WithoutStack() : stack_(std::exchange(mirror(), {})) {}
  ~WithoutStack() {
    mirror() = std::move(stack_);
  }
  WithoutStack(const WithoutStack&) = delete;
  WithoutStack& operator=(const WithoutStack&) = delete;

 private:
  StackCopy stack_;
};

// Whether a level further out may differentiate its values.
bool is_wrapped_with_history(const Tensor& tensor) {
  if (is_functional(tensor)) {
    return true;
  }
  const auto* wrapper = wrapper_of(tensor);
  return wrapper != nullptr && wrapper->is_alive() && !is_of_custom_layer(tensor);
}

class VariableHooks final : public at::impl::VariableHooksInterface {
 public:
  explicit VariableHooks(const VariableHooksInterface& torchs) : torchs_(torchs) {}

  void retain_grad(const TensorBase& self) const override {
    if (top_layer() == nullptr) {
      torchs_.retain_grad(self);
      return;
    }
    if (!self.requires_grad() && recorded(Tensor(self)).first.defined()) {
      raise(
          "x.retain_grad() was called on a tensor that {} does not differentiate with respect to: "
          "an outer transform differentiates a value inside it. Name it, x = torchlayers.tap(x, "
          "\"x\"), and request its gradient from that transform: grad(f, taps=\"x\").",
          top_layer()->name());
    }
    const WithoutStack allowed; // it calls no operator
    torchs_.retain_grad(self);
  }

  TensorBase tensor_data(const TensorBase& self) const override {
    return torchs_.tensor_data(self);
  }
  // `x.data`, which torch copies without the history of x at its own level, and with those of the
  // values inside.
  TensorBase variable_data(const TensorBase& self) const override {
    const Tensor tensor(self);
    if (!any_layer() || !is_wrapped_with_history(tensor)) {
      return torchs_.variable_data(self);
    }
    Tensor data = tensor.detach();
    // Unlike detach(), it does not let autograd know of writes.
    data.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(0));
    return data;
  }
  const decltype(torch::autograd::Edge::function)& grad_fn(const TensorBase& self) const override {
    return torchs_.grad_fn(self);
  }
  unsigned _register_hook(
      const TensorBase& self, std::function<TensorBase(const TensorBase&)> hook) const override {
    return torchs_._register_hook(self, std::move(hook));
  }
  void remove_hook(const TensorBase& self, unsigned place) const override {
    torchs_.remove_hook(self, place);
  }
  bool is_view(const TensorBase& self) const override {
    return torchs_.is_view(self);
  }
  const TensorBase& base(const TensorBase& self) const override {
    return torchs_.base(self);
  }
  const std::string& name(const TensorBase& self) const override {
    return torchs_.name(self);
  }
  bool is_leaf(const TensorBase& self) const override {
    return torchs_.is_leaf(self);
  }
  int64_t output_nr(const TensorBase& self) const override {
    return torchs_.output_nr(self);
  }
  void set_data(const TensorBase& self, const TensorBase& data) const override {
    torchs_.set_data(self, data);
  }
  TensorBase data(const TensorBase& self) const override {
    return torchs_.data(self);
  }
  int64_t _version(const TensorBase& self) const override {
    return torchs_._version(self);
  }
  bool retains_grad(const TensorBase& self) const override {
    return torchs_.retains_grad(self);
  }
  void _backward(
      const Tensor& self,
      at::TensorList inputs,
      const std::optional<Tensor>& gradient,
      std::optional<bool> keep_graph,
      bool create_graph) const override {
    torchs_._backward(self, inputs, gradient, keep_graph, create_graph);
  }
  void requires_grad_(const TensorBase& self, bool requires_grad) const override {
    torchs_.requires_grad_(self, requires_grad);
  }
  void basic_autograd_not_implemented_fallback(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) const override {
    torchs_.basic_autograd_not_implemented_fallback(op, keys, stack);
  }
  std::optional<c10::ScalarType> grad_dtype(const TensorBase& self) const override {
    return torchs_.grad_dtype(self);
  }
  void set_grad_dtype(
      const TensorBase& self, const std::optional<c10::ScalarType>& dtype) const override {
    torchs_.set_grad_dtype(self, dtype);
  }

 private:
  const VariableHooksInterface& torchs_;
};

} // namespace

void use_our_tensor_methods(bool is_in) {
  // Both live as long as the process.
  static auto* torchs = at::impl::GetVariableHooks();
  static auto* ours = new VariableHooks(*torchs);
  if (at::impl::GetVariableHooks() == (is_in ? torchs : ours)) {
    at::impl::SetVariableHooks(is_in ? ours : torchs);
  }
}

} // namespace torchlayers
