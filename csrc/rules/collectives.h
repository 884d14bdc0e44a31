// torch.distributed's functional collectives, by their names.
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

// A collective's result when it has arrived.
at::Tensor waited(const at::Tensor& pending);

// A collective on a tensor that somebody else may have laid out, and its result when it has
// arrived. `rest` are the arguments behind the tensor.
at::Tensor collective(
    const char* name, const at::Tensor& x, std::initializer_list<c10::IValue> rest);

bool have_one_dtype_and_shape(const at::Tensor& value, const at::Tensor& tangent);
// Whether both are of as many samples, so that neither is repeated for the other.
bool may_be_stacked(const at::Tensor& value, const at::Tensor& tangent);

// The tangents of an operator that is linear in a list, its first argument: values and those
// tangents that there are go in one call.
void with_tangents_in_list(JvpCall& call);

} // namespace torchlayers
