// The differences between torch 2.11 and 2.15: no other file asks for the version.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/symbol.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/version.h>

#include <memory>
#include <optional>
#include <string>
#include <type_traits>

namespace torchlayers {

// 2.11 has no name for it in c10::aten.
inline const c10::Symbol kNumel = c10::Symbol::fromQualString("aten::numel");

// Where two values are equal, fmax, fmin and clamp (with tensors for bounds) give half of the
// cotangent to each since 2.14; before, they give all of it to the first. With a number for a
// bound, elements equal to it get nothing since 2.14, and all of it before.
inline constexpr bool kTiesAreShared = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14;

// Whether y[i] = value, where value is a one-element tensor, accesses the memory of both.
inline constexpr bool kWritesAskForMemory = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15;

// Whether accessing this memory is an error, where torch can tell: since 2.15.
template <class Memory>
bool is_closed(const Memory& memory) {
  if constexpr (requires { memory.throw_on_immutable_data_ptr(); }) {
    return memory.throw_on_immutable_data_ptr();
  }
  return false;
}

// The index of the argument of this name. 2.15 uses grad_output where others use grad.
inline std::optional<int> place_of_argument(
    const c10::FunctionSchema& schema, const std::string& name) {
  const auto place = schema.argumentIndexWithName(name);
  return place || name != "grad" ? place : schema.argumentIndexWithName("grad_output");
}

// torch holds its nodes by an intrusive pointer since 2.13, and by a shared pointer before.
template <class NodeType>
using NodePointer = std::conditional_t<
    std::is_same_v<
        decltype(torch::autograd::Edge::function),
        std::shared_ptr<torch::autograd::Node>>,
    std::shared_ptr<NodeType>,
    c10::intrusive_ptr<NodeType>>;

} // namespace torchlayers
