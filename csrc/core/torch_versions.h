// What torches 2.11 to 2.15 don't have in common: no other file asks which one it is.
#pragma once

#include <ATen/core/symbol.h>
#include <torch/version.h>

namespace torchlayers {

// 2.11 has no name for it in c10::aten.
inline const c10::Symbol kNumel = c10::Symbol::fromQualString("aten::numel");

// Where two values are equal, fmax, fmin and clamp (with tensors for bounds) give half of a
// cotangent to each since 2.14; before, they give all of it to the first. Clamped to a number,
// what is equal to that gets nothing since 2.14, and before all of it.
inline constexpr bool kTiesAreShared = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14;

} // namespace torchlayers
