// C++ autograd Functions as extensions have them: one inside an operator made of others,
// one that is an operator's autograd kernel. test_cpp.py builds them.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor call_square(const at::Tensor& x) {
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("torchlayers_cpp_tests::square", "")
                       .typed<at::Tensor(const at::Tensor&)>();
  return op.call(x);
}

variable_list gradient(AutogradContext* ctx, const variable_list& g) {
  return {g[0] * 2 * ctx->get_saved_variables()[0]};
}

struct Plain : public torch::autograd::Function<Plain> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    return x * x;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& g) {
    return gradient(ctx, g);
  }
};

struct Kernel : public torch::autograd::Function<Kernel> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    at::AutoDispatchBelowADInplaceOrView guard;
    return call_square(x);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& g) {
    return gradient(ctx, g);
  }
};

TORCH_LIBRARY(torchlayers_cpp_tests, m) {
  m.def("composite(Tensor x) -> Tensor", [](const at::Tensor& x) { return Plain::apply(x); });
  m.def("square(Tensor x) -> Tensor");
  m.impl("square", c10::DispatchKey::CPU, [](const at::Tensor& x) { return x * x; });
  m.impl(
      "square", c10::DispatchKey::Autograd, [](const at::Tensor& x) { return Kernel::apply(x); });
}
