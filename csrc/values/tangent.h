// The tangent of a tensor at a jvp's level.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace torchlayers {

// NOTE [Tangents of rules]
// torch's forward AD keeps a tangent as a tensor of its primal's level, in a table that the
// dual level knows of, which takes three locks to enter and three to leave. A rule makes and
// reads tangents as values of the layers below, so that is what the results of one hold. Such
// a tangent becomes torch's, wrapped and in the table, when torch first asks for it: in an
// operator without a rule, or where the user unpacks a dual tensor. It stays here too: torch
// forgets it when the dual level ends, and a function that is recomputed then has to find it.

// torch's forward AD numbers nested dual levels; the dispatcher's layers all use the first.
inline constexpr uint64_t kDualLevel = 0;

// The tangent of a wrapper of this level, as a value of the layers below; undefined if none.
at::Tensor tangent_of(const at::Tensor& wrapper, int64_t level);

// Gives a wrapper that nobody else has seen yet its tangent, a value of the layers below.
void give_tangent(const at::Tensor& wrapper, at::Tensor tangent);

// Lets torch know that such a wrapper is a view of this tensor, so that a write to either is
// seen by both, and by their tangents. The tangent may be undefined.
void become_view_of(const at::Tensor& base, const at::Tensor& wrapper, at::Tensor tangent);

// As torch's forward AD asks of a tangent, its views being the views of its primal.
bool is_laid_out_like(const at::Tensor& tangent, const at::Tensor& primal);

// A copy that is, broadcast to the primal.
at::Tensor copy_like(const at::Tensor& tangent, const at::Tensor& primal);

} // namespace torchlayers
