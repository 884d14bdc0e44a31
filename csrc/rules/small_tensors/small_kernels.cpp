#include "rules/small_tensors/small_kernels.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "core/skip_autograd.h"
#include "rules/small_tensors/scalar_fast_path.h"

namespace torchlayers {
namespace {

// A class for which TypedOperatorHandle is specialized below.
struct KernelReader;

} // namespace
} // namespace torchlayers

// The dispatcher's own handles may read an operator's table of kernels, and typed ones are friends.
template <>
class c10::TypedOperatorHandle<torchlayers::KernelReader> {
 public:
  static const c10::KernelFunction& kernel_for_cpu(const c10::OperatorHandle& handle) {
    return handle.operatorDef_->op.lookup(c10::DispatchKeySet(c10::DispatchKey::CPU));
  }
};

namespace torchlayers {
namespace {

using at::Tensor;

// NOTE [Small kernels]
// Little of the time of a multiplication of a few numbers is the multiplication: the dispatcher
// finds a kernel, which compares shapes, strides and dtypes and plans a loop. But the result of
// +, -, * and / is rounded once, so every implementation gives the same bits (torch's square root
// does not). On small plain tensors we compute these operators ourselves, where and as
// NOTE [One pass] computes derivatives. Since a user called them, two more conditions hold: no
// observer (such as a profiler) is to be told of the call, and the CPU's kernel is torch's, not one
// that was registered since.

const c10::KernelFunction& kernel_for_cpu(const c10::OperatorHandle& handle) {
  return c10::TypedOperatorHandle<KernelReader>::kernel_for_cpu(handle);
}

// Whether torch itself registered the kernel that the CPU has now.
bool is_torchs(const c10::OperatorHandle& handle) {
  const std::string table = handle.dumpComputedTable();
  const size_t line = table.find("\nCPU: ");
  return line != std::string::npos &&
         table.substr(line + 1, table.find('\n', line + 1) - line).find("/RegisterCPU") !=
             std::string::npos;
}

// Computes the operator from what the pass has read.
using Compute = Tensor (*)(OnePass& pass);

template <auto kExpression>
Tensor of_one(OnePass& pass) {
  return pass.compute([](const auto& element) { return kExpression(element.at(0)); });
}

template <auto kExpression>
Tensor of_two(OnePass& pass) {
  return pass.compute(
      [](const auto& element) { return kExpression(element.at(0), element.at(1)); });
}

class Arithmetic final : public SmallKernel {
 public:
  Arithmetic(c10::OperatorHandle handle, Compute compute)
      : handle_(std::move(handle)), kernel_(kernel_for_cpu(handle_)), compute_(compute) {}

  Tensor compute(const Tensor& x, const Tensor& y) const override {
    if (!is_plain(x) || x.numel() > OnePass::kMostElements) {
      return {}; // at once, so that others pay nothing
    }
    OnePass pass{OnePass::PlainValues()};
    const bool is_read = pass.read(0, x) && (!y.defined() || pass.read(1, y));
    return is_read && pass.converts_exactly() && is_unobserved() ? compute_(pass) : Tensor();
  }

 private:
  bool is_unobserved() const {
    return !at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION) &&
           kernel_for_cpu(handle_)._equalsBoxedAndUnboxed(kernel_);
  }

  const c10::OperatorHandle handle_;
  const c10::KernelFunction kernel_;
  const Compute compute_;
};

struct Named {
  std::string_view name;
  Compute compute;
};

constexpr Named kKernels[] = {
    {"aten::add.Tensor", of_two<[](auto x, auto y) { return x + y; }>},
    {"aten::sub.Tensor", of_two<[](auto x, auto y) { return x - y; }>},
    {"aten::mul.Tensor", of_two<[](auto x, auto y) { return x * y; }>},
    {"aten::div.Tensor", of_two<[](auto x, auto y) { return x / y; }>},
    {"aten::neg", of_one<[](auto x) { return -x; }>},
    {"aten::abs", of_one<[](auto x) { return std::abs(x); }>},
    {"aten::reciprocal", of_one<[](auto x) { return 1 / x; }>},
};

} // namespace

const SmallKernel* find_small_kernel(const c10::OperatorName& name) {
  const std::string full_name = c10::toString(name);
  const auto* found = std::ranges::find(kKernels, full_name, &Named::name);
  if (found == std::end(kKernels)) {
    return nullptr;
  }
  const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), name.overload_name.c_str());
  return is_torchs(handle) ? new Arithmetic(handle, found->compute) : nullptr;
}

std::vector<std::string> names_of_small_kernels() {
  std::vector<std::string> names;
  for (const Named& kernel : kKernels) {
    names.emplace_back(kernel.name);
  }
  return names;
}

} // namespace torchlayers
