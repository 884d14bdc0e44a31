// An operator on one sample that stands in for all, which shows what it refuses, and what its
// results are like.
#pragma once

#include <optional>

#include "core/operator.h"

namespace torchlayers {

// What the operator returns for a sample of the arguments' shapes, filled with a number, and for
// those of no samples as they are: past all layers, modes and autograd, on the processor. Throws
// what the operator throws; nothing where such a sample can't stand in for an argument.
std::optional<Args> run_on_stand_in(const Operator& op, const Args& args, int64_t number);

// What the operator returns for tensors that are laid out like the arguments and hold no numbers,
// past all layers, modes and autograd. Throws what the operator throws.
Args run_on_meta(const Operator& op, const Args& args);

} // namespace torchlayers
