// Named axes: the batch dimension of a vmap, or the ranks of a process group.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torchlayers {

// NOTE [Named axes]
// torchlayers::psum and its relatives (axes.cpp) take the axis as a string: "#3" is the vmap at
// level 3, anything else is the name of a process group. Such an operator goes down the layer stack
// like any other, differentiated and batched by its rules, until it reaches the vmap that its axis
// names, whose batching rule resolves it (batching/axes.cpp). An operator on a process group
// reaches the kernel, which is a collective. So one function works over samples, over ranks and
// over both.
//
// psum is its own transpose: the function that is differentiated is the sum of what all samples or
// ranks return, as with torch's all_reduce. The result of psum_invariant is one value that all of
// them share, which has one cotangent. Its transpose is pvary, which copies a shared value to each,
// and vice versa.
inline std::string axis_of_vmap(int64_t level) {
  return "#" + std::to_string(level);
}
inline bool is_of_vmap(const std::string& axis) {
  return !axis.empty() && axis[0] == '#';
}

// The inverse of a permutation that may skip places: the source of each place, or -1.
std::vector<int64_t> inverse_sources(const std::vector<int64_t>& sources);

// While an instance is alive, each collective of a named axis over ranks first checks that all
// ranks are at the same collective, with tensors of the same sizes. On all threads: backward runs
// on threads of its own.
struct ComparingRanks {
  ComparingRanks();
  ~ComparingRanks();
  ComparingRanks(const ComparingRanks&) = delete;
  ComparingRanks& operator=(const ComparingRanks&) = delete;
};

} // namespace torchlayers
