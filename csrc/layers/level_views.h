// Values of inner levels, as an outer level sees them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace torchlayers {

// The tensor as it is after the levels above this one have ended: with a dimension in front for
// each vmap among them, outermost first, whether it is batched there or not; without its
// derivatives.
at::Tensor seen_from(const at::Tensor& tensor, int64_t level);

// The inverse, for a tensor with those dimensions: a sample of it at the top level.
at::Tensor sample_of(at::Tensor tensor, int64_t level);

// How the levels above a level hold a tensor of that level inside another tensor.
struct Hold {
  struct Samples {
    int64_t of;  // the level of a vmap
    int64_t dim; // -1 if the tensor is the same for all samples
  };

  int64_t level = 0;
  std::vector<Samples> samples;    // for each vmap above that, outermost first
  bool stands_for_another = false; // at one of these. NOTE [Made inside]

  // The innermost vmap whose samples differ; 0 if there is none.
  int64_t innermost_vmap() const;
};

// The tensor of that level inside this one, and how the levels above hold it.
std::pair<at::Tensor, Hold> held_at(const at::Tensor& tensor, int64_t level);

// The tensor inside at the highest level that records it; undefined if none does.
std::pair<at::Tensor, Hold> recorded(const at::Tensor& tensor);

// A tensor of that level, or its value, held in the same way. Levels that are not vmaps wrap it
// only if they are above level `from`.
at::Tensor shown_by(const Hold& hold, at::Tensor tensor, int64_t from);

// The inverse, for a tensor computed from it. Throws if that differs between samples of a vmap at
// which the original tensor is the same for all.
at::Tensor taken_from(const Hold& hold, const at::Tensor& made);

} // namespace torchlayers
