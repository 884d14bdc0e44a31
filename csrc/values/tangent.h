// The tangent of a tensor at a jvp's level.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace torchlayers {

// NOTE [Tangents of rules]
// torch's forward AD stores a tangent as a tensor of its primal's level, in a table that is
// registered with the dual level, which takes three locks to enter and three to leave. A rule makes
// and reads tangents as values of the layers below, so its results hold them as such. The tangent
// is wrapped and put into torch's table when torch first asks for it: in an operator without a
// rule, or when the user unpacks a dual tensor. It stays here too: torch forgets it when the dual
// level ends, and a function that is recomputed later has to find it. For the same reason a tangent
// that only torch has is made to outlive the dual level when it is read under saved-tensor hooks.

// torch's forward AD numbers nested dual levels; everything in the dispatcher uses the first.
inline constexpr uint64_t kDualLevel = 0;

// The tangent of a wrapper of this level, as a value of the layers below; undefined if none.
at::Tensor tangent_of(const at::Tensor& wrapper, int64_t level);

// Called where a tangent of torch's is about to be read by torch's code, which tangent_of doesn't
// see: as there, it outlives the dual level under saved-tensor hooks.
void keep_tangent_for_hooks(const at::Tensor& wrapper);

// Sets the tangent, a value of the layers below, of a new wrapper that no other code has seen.
void give_tangent(const at::Tensor& wrapper, at::Tensor tangent);

// NOTE [Borrowed tangents]
// The tangents that jvp is called with belong to the caller and must not change. A write to a dual
// tensor writes to its tangent too, so the first write to an argument, or to a view of one, copies
// its tangent, and the argument's live views get views of the copy. A function that does not write
// to an argument pays for no copy.
void lend_tangent(const at::Tensor& wrapper, at::Tensor tangent);
// Notes a view made by torch's kernels, of a tensor whose tangent may be borrowed.
void note_view(const at::Tensor& view);
// Whether a write to this tensor is the first to a borrowed tangent.
bool writes_to_borrowed(const at::Tensor& wrapper);
// Copies the borrowed tangent. Called below the layer of this level.
void own_tangent(const at::Tensor& wrapper, int64_t level);

// Registers a new wrapper with torch as a view of `base`, so that a write to either is seen by
// both, and by their tangents. The tangent may be undefined.
void become_view_of(const at::Tensor& base, const at::Tensor& wrapper, at::Tensor tangent);

// Whether the tangent has the layout that torch's forward AD needs to view it as it views the
// primal.
bool is_laid_out_like(const at::Tensor& tangent, const at::Tensor& primal);

// Whether the tangent's first element is elsewhere in memory, as it may be if it is batched and its
// primal is not. as_strided counts elements from the start of the memory. Results are not asked for
// this: their tangents start elsewhere wherever the batch is not the first dimension.
bool starts_elsewhere(const at::Tensor& tangent, const at::Tensor& primal);

// A copy with that layout, broadcast to the primal.
at::Tensor copy_like(const at::Tensor& tangent, const at::Tensor& primal);

} // namespace torchlayers
