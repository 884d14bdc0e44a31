// Runs an operator on a stand-in for one sample, to find out what it rejects, and the shapes and
// dtypes of its results.
#pragma once

#include <optional>

#include "core/operator.h"

namespace torchlayers {

// The operator's results for stand-ins of a sample, with the arguments' shapes and filled with a
// number, and for arguments that are not batched: on the CPU, bypassing all layers, modes and
// autograd. Throws what the operator throws; nullopt if there can be no stand-in for an argument.
std::optional<Args> run_on_stand_in(const Operator& op, const Args& args, int64_t number);

// The operator's results for tensors with the arguments' layout and no data, bypassing all layers,
// modes and autograd. Throws what the operator throws.
Args run_on_meta(const Operator& op, const Args& args);

} // namespace torchlayers
