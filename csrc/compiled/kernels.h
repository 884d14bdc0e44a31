// The steps of compiled code that are not operators: allocations, views, calls of its own kernels.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "compiled/program.h"

namespace torchlayers::compiled {

// Sizes, strides and, for a view, its offset in elements.
struct Layout {
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
};

// A layout of which some numbers are values of the program: the step's last arguments.
struct SymbolicLayout {
  Layout layout;
  // Where they go, counted over the sizes, the strides and the offset.
  std::vector<size_t> symbolic;
};

// Makes a step's call, once its values have slots.
using MakeCall = std::function<std::shared_ptr<const TypedCall>(const Step&)>;

// A new tensor in host memory.
MakeCall allocation(SymbolicLayout layout, at::ScalarType dtype);
// A view of a tensor's memory with another layout.
MakeCall reinterpretation(SymbolicLayout layout);
// Throws if a tensor does not have this layout.
MakeCall layout_check(SymbolicLayout layout);

// Writes the product of the step's second and third tensors to the first, and adds the fourth if
// there is one; matmul_backend.h.
MakeCall product(at::Scalar beta, at::Scalar alpha);

// Kernels are C functions of at most so many addresses of tensors' elements, and sizes.
constexpr size_t kMostAddresses = 80;
using Addresses = std::array<void*, kMostAddresses>;
void call_kernel(void* function, const Addresses& addresses, size_t count);
MakeCall kernel_call(void* function);

} // namespace torchlayers::compiled
