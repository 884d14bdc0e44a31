// torch.distributed's functional collectives, called by name.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <initializer_list>

#include "rules/jvp_call.h"

namespace torchlayers {

inline constexpr const char* kCollectives = "_c10d_functional::";
inline constexpr const char* kCollectivesOfAutograd = "_c10d_functional_autograd::";

// Calls `_c10d_functional::name`.
c10::IValue call_collective(const char* name, Args args);

// Waits for a collective's result.
at::Tensor waited(const at::Tensor& pending);

// Calls a collective on a tensor of any strides and waits for its result. `rest` are the arguments
// after the tensor.
at::Tensor collective(
    const char* name, const at::Tensor& x, std::initializer_list<c10::IValue> rest);

bool have_one_dtype_and_shape(const at::Tensor& value, const at::Tensor& tangent);
// Whether both have the same number of samples, so that neither has to be repeated.
bool may_be_stacked(const at::Tensor& value, const at::Tensor& tangent);

// The tangents of an operator that is linear in a list, its first argument: the values and the
// tangents that are present go through one call.
void with_tangents_in_list(JvpCall& call);

} // namespace torchlayers
