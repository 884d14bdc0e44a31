// Named axes: the samples of a vmap, or the ranks of a process group.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torchlayers {

// NOTE [Named axes]
// torchlayers::psum and its relatives (axes.cpp) take the axis as a string: "#3" is the vmap at
// level 3, anything else the name of a process group. Such an operator goes down the stack like any
// other, differentiated and batched by its rules, until it comes to the vmap that it is about,
// whose batching rule resolves it (batching/axes.cpp); what is about a process group comes to the
// kernel, a collective. So one function runs over samples, over ranks and over both.
//
// psum is its own transpose: what is differentiated is the sum of what all samples or ranks return,
// as with torch's all_reduce. psum_invariant makes one value that all share, of which there is one
// cotangent: its transpose is pvary, which shares a value, and back.
inline std::string axis_of_vmap(int64_t level) {
  return "#" + std::to_string(level);
}
inline bool is_of_vmap(const std::string& axis) {
  return !axis.empty() && axis[0] == '#';
}

// The inverse of a permutation that may leave places out: by places, where each comes from, or -1.
std::vector<int64_t> inverse_sources(const std::vector<int64_t>& sources);

// While one lives, each collective of a named axis over ranks makes sure first that all of them are
// at the same one, of tensors of the same sizes. On all threads: a backward has its own.
struct ComparingRanks {
  ComparingRanks();
  ~ComparingRanks();
  ComparingRanks(const ComparingRanks&) = delete;
  ComparingRanks& operator=(const ComparingRanks&) = delete;
};

} // namespace torchlayers
