// What compiled code is made of besides operators: memory, ways to see it, kernels of its own.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "compiled/program.h"

namespace torchlayers::compiled {

// Size, strides and, of a view, by how many elements it begins later.
struct Layout {
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
};

// Makes a step what it does, once its values have slots.
using MakeCall = std::function<std::shared_ptr<const TypedCall>(const Step&)>;

// A new tensor in host memory.
MakeCall allocation(Layout layout, at::ScalarType dtype);
// The memory of a tensor seen in another way.
MakeCall reinterpretation(Layout layout);
// Throws where a tensor is not laid out so.
MakeCall layout_check(Layout layout);

// Of the step's tensors: writes the product of the second and the third to the first, and adds the
// fourth where there is one; products.h.
MakeCall product(at::Scalar beta, at::Scalar alpha);

// A function in C that takes so many addresses of tensors' elements, and sizes.
constexpr size_t kMostAddresses = 80;
using Addresses = std::array<void*, kMostAddresses>;
void call_kernel(void* function, const Addresses& addresses, size_t count);
MakeCall kernel_call(void* function);

} // namespace torchlayers::compiled
