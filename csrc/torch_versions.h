// What torches 2.11 to 2.15 don't have in common: no other file asks which one it is.
#pragma once

#include <ATen/core/symbol.h>

namespace torchlayers {

// 2.11 has no name for it in c10::aten.
inline const c10::Symbol kNumel = c10::Symbol::fromQualString("aten::numel");

} // namespace torchlayers
