// Values of inner levels, as an outer level sees them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace torchlayers {

// What a tensor is when the levels above this one are over: with a dimension in front for each vmap
// among them, the outermost first, whether it is batched there or not; without its derivatives.
at::Tensor seen_from(const at::Tensor& tensor, int64_t level);

// The inverse, of a tensor with those dimensions: a sample of it at the top level.
at::Tensor sample_of(at::Tensor tensor, int64_t level);

// How the levels above one hold a tensor of it as another.
struct Hold {
  struct Samples {
    int64_t of;  // the level of a vmap
    int64_t dim; // -1 where the tensor is alike for all samples
  };

  int64_t level = 0;
  std::vector<Samples> samples;    // for each vmap above that, the outermost first
  bool stands_for_another = false; // at one of them. NOTE [Made inside]

  // The innermost vmap that has samples of their own; 0 where there is none.
  int64_t innermost_vmap() const;
};

// The tensor of that level that those above hold as this one.
std::pair<at::Tensor, Hold> held_at(const at::Tensor& tensor, int64_t level);

// The tensor of the highest level that records it; undefined where nobody does.
std::pair<at::Tensor, Hold> recorded(const at::Tensor& tensor);

// A tensor of that level, or of its value, as those above level `from` hold it.
at::Tensor shown_by(const Hold& hold, at::Tensor tensor, int64_t from);

// The inverse, of what has been made of it there. Throws where that differs between samples, and
// the tensor does not.
at::Tensor taken_from(const Hold& hold, const at::Tensor& made);

} // namespace torchlayers
