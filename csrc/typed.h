// The front for operators of a few signatures, without boxes.
#pragma once

#include <string>
#include <vector>

namespace torchlayers {

// Registers it on the front key, for good, where the operators have the fallback else.
void register_typed();

// The operators that have it.
std::vector<std::string> typed_operators();

} // namespace torchlayers
