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

// NOTE [Borrowed tangents]
// The tangents that jvp is called with are the caller's, and stay as they are. A write to a dual
// tensor writes to its tangent too, so the first write to an argument, or to a view of one, copies
// its tangent, and the views of the argument that are alive get views of the copy. Whoever does not
// write to an argument pays for no copy.
void lend_tangent(const at::Tensor& wrapper, at::Tensor tangent);
// A view that torch's kernels have made, of a tensor that may have such a tangent.
void note_view(const at::Tensor& view);
// Whether a write to this tensor is the first to such a tangent.
bool writes_to_borrowed(const at::Tensor& wrapper);
// Copies it. Called below the layer of this level.
void own_tangent(const at::Tensor& wrapper, int64_t level);

// Lets torch know that such a wrapper is a view of this tensor, so that a write to either is
// seen by both, and by their tangents. The tangent may be undefined.
void become_view_of(const at::Tensor& base, const at::Tensor& wrapper, at::Tensor tangent);

// As torch's forward AD asks of a tangent, its views being the views of its primal.
bool is_laid_out_like(const at::Tensor& tangent, const at::Tensor& primal);

// A copy that is, broadcast to the primal.
at::Tensor copy_like(const at::Tensor& tangent, const at::Tensor& primal);

} // namespace torchlayers
