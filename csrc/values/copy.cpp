#include "values/copy.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/record_function.h>

#include <array>
#include <cstring>

#include "core/device.h"
#include "core/recording.h"
#include "core/trace.h"

namespace torchlayers {
namespace {

using at::Tensor;

constexpr size_t kMostDims = 8;
constexpr size_t kMostBytes = 1 << 18; // which torch's kernels give to one thread too
constexpr size_t kMostBlocks = 1 << 12;

// Bytes from one element to the next along each dimension of `to`.
using Steps = std::array<int64_t, kMostDims>;

struct Blocks {
  std::array<int64_t, kMostDims> counts;
  Steps to;
  Steps from;
  size_t dims;
  size_t bytes; // of a block, which is without gaps in both
};

// The steps of a tensor that is broadcast to these sizes; false if it can't be.
bool find_steps(const Tensor& tensor, at::IntArrayRef sizes, Steps& steps) {
  const auto rank = static_cast<size_t>(tensor.dim());
  if (rank > sizes.size()) {
    return false;
  }
  const size_t ahead = sizes.size() - rank;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t own = i < ahead ? 1 : tensor.sizes()[i - ahead];
    if (own != sizes[i] && own != 1) {
      return false;
    }
    steps[i] = own == 1 ? 0 : tensor.strides()[i - ahead] * static_cast<int64_t>(tensor.itemsize());
  }
  return true;
}

// False where they are many, or the sizes don't fit.
bool find_blocks(const Tensor& to, const Tensor& from, Blocks& blocks) {
  const at::IntArrayRef sizes = to.sizes();
  if (sizes.size() > kMostDims || !find_steps(to, sizes, blocks.to) ||
      !find_steps(from, sizes, blocks.from)) {
    return false;
  }
  std::copy(sizes.begin(), sizes.end(), blocks.counts.begin());
  blocks.bytes = to.itemsize();
  blocks.dims = sizes.size();
  while (blocks.dims > 0) {
    const size_t last = blocks.dims - 1;
    const auto bytes = static_cast<int64_t>(blocks.bytes);
    const bool is_without_gaps = blocks.to[last] == bytes && blocks.from[last] == bytes;
    if (blocks.counts[last] != 1 && !is_without_gaps) {
      break;
    }
    blocks.bytes *= static_cast<size_t>(blocks.counts[last]);
    --blocks.dims;
  }
  return to.nbytes() <= kMostBlocks * blocks.bytes;
}

void copy_blocks(const Blocks& blocks, size_t dim, char* to, const char* from) {
  if (dim == blocks.dims) {
    std::memcpy(to, from, blocks.bytes);
    return;
  }
  const bool is_last = dim + 1 == blocks.dims;
  for (int64_t i = 0; i < blocks.counts[dim]; ++i) {
    if (is_last && blocks.bytes == sizeof(float)) { // which compilers see through
      std::memcpy(to, from, sizeof(float));
    } else if (is_last && blocks.bytes == sizeof(double)) {
      std::memcpy(to, from, sizeof(double));
    } else {
      copy_blocks(blocks, dim + 1, to, from);
    }
    to += blocks.to[dim];
    from += blocks.from[dim];
  }
}

bool is_plain_memory(const Tensor& tensor) {
  return is_plain(tensor) && is_in_host_memory(*tensor.unsafeGetTensorImpl()) &&
         !tensor.is_inference();
}

} // namespace

bool copy_at_once(const Tensor& to, const Tensor& from) {
  const bool may_be =
      !tracing && !is_any_mode_on() && !at::hasCallbacks() && to.dtype() == from.dtype() &&
      is_plain_memory(to) && is_plain_memory(from) && to.numel() > 0 && to.nbytes() <= kMostBytes &&
      to.storage().unsafeGetStorageImpl() != from.storage().unsafeGetStorageImpl() &&
      at::has_internal_overlap(to.unsafeGetTensorImpl()) != at::MemOverlap::Yes;
  Blocks blocks;
  if (!may_be || !find_blocks(to, from, blocks)) {
    return false;
  }
  copy_blocks(
      blocks,
      0,
      static_cast<char*>(to.mutable_data_ptr()),
      static_cast<const char*>(from.const_data_ptr()));
  to.unsafeGetTensorImpl()->bump_version();
  return true;
}

} // namespace torchlayers
