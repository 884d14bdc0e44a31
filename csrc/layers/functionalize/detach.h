// y.detach() of functional tensors.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchlayers {

// NOTE [Detached functional tensors]
// y.detach() shares y's memory and not its history: a value that is written through either is seen
// by both, and its derivative by that one alone. For torch's functional tensors detach is a view
// like any other, so that a write would make y a constant, and the detached tensor lose its
// history. So detach gets a view of our own, which gives the written values the history that the
// memory had, and remembers theirs. No operator does that. `.data` is no operator, and torch would
// copy the wrapper, whose value keeps its history; dispatch/tensor_methods.cpp detaches it instead.

// Replaces torch's view in a result of detach.
void detach_functional(const at::Tensor& result);

} // namespace torchlayers
