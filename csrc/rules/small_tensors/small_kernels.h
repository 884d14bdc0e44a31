// Arithmetic on small plain tensors.
#pragma once

#include <ATen/core/operator_name.h>

#include <string>
#include <vector>

#include "core/small_kernel.h"

namespace torchlayers {

// The small kernel of the operator of this name, which is never freed; null if there is none.
const SmallKernel* find_small_kernel(const c10::OperatorName& name);

// The names of the operators that have one.
std::vector<std::string> names_of_small_kernels();

} // namespace torchlayers
