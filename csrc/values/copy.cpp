#include "values/copy.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/record_function.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstring>

#include "core/device.h"
#include "core/skip_autograd.h"
#include "core/trace/trace.h"

namespace torchlayers {
namespace {

using at::Tensor;

constexpr size_t kMostDims = 8;
constexpr size_t kMostBytes = 1 << 18; // for which torch's kernels use one thread too
constexpr size_t kMostBlocks = 1 << 12;
constexpr size_t kMostInWords = 512; // per block; memcpy is faster on more

// Bytes from one element to the next along each dimension of `to`.
using Steps = std::array<int64_t, kMostDims>;

struct Blocks {
  std::array<int64_t, kMostDims> counts;
  Steps to;
  Steps from;
  size_t dims;
  size_t bytes; // of a block, which is contiguous in both
};

// The steps of a tensor that is broadcast to these sizes; false if it can't be.
bool find_steps(const Tensor& tensor, at::IntArrayRef sizes, size_t in_front, Steps& steps) {
  const auto rank = static_cast<size_t>(tensor.dim());
  if (rank > sizes.size() || rank < in_front) {
    return false;
  }
  const size_t ahead = sizes.size() - rank;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const bool is_missing = i >= in_front && i < in_front + ahead;
    const size_t own = i < in_front ? i : i - ahead;
    const int64_t size = is_missing ? 1 : tensor.sizes()[own];
    if (size != sizes[i] && size != 1) {
      return false;
    }
    steps[i] = size == 1 ? 0 : tensor.strides()[own] * static_cast<int64_t>(tensor.itemsize());
  }
  return true;
}

// False if there are too many, or the sizes don't match.
bool find_blocks(const Part& part, const Tensor& from, size_t in_front, Blocks& blocks) {
  const at::IntArrayRef sizes = part.sizes;
  if (sizes.size() > kMostDims || !find_steps(from, sizes, in_front, blocks.from)) {
    return false;
  }
  const auto item = static_cast<int64_t>(from.itemsize());
  size_t bytes = from.itemsize();
  for (size_t i = 0; i < sizes.size(); ++i) {
    blocks.counts[i] = sizes[i];
    blocks.to[i] = part.strides[i] * item;
    bytes *= static_cast<size_t>(sizes[i]);
  }
  blocks.bytes = from.itemsize();
  blocks.dims = sizes.size();
  while (blocks.dims > 0) {
    const size_t last = blocks.dims - 1;
    const auto of_block = static_cast<int64_t>(blocks.bytes);
    const bool is_without_gaps = blocks.to[last] == of_block && blocks.from[last] == of_block;
    if (blocks.counts[last] != 1 && !is_without_gaps) {
      break;
    }
    blocks.bytes *= static_cast<size_t>(blocks.counts[last]);
    --blocks.dims;
  }
  return bytes > 0 && bytes <= kMostBytes && bytes <= kMostBlocks * blocks.bytes;
}

// Copies kBytes at a time: for a size known to the compiler, memcpy needs no call.
template <size_t kBytes>
void copy_row(const Blocks& blocks, size_t dim, char* to, const char* from) {
  for (int64_t i = 0; i < blocks.counts[dim]; ++i) {
    for (size_t at = 0; at < blocks.bytes; at += kBytes) {
      std::memcpy(to + at, from + at, kBytes);
    }
    to += blocks.to[dim];
    from += blocks.from[dim];
  }
}

void copy_blocks(const Blocks& blocks, size_t dim, char* to, const char* from) {
  if (dim == blocks.dims) {
    std::memcpy(to, from, blocks.bytes);
    return;
  }
  if (dim + 1 == blocks.dims && blocks.bytes <= kMostInWords) {
    if (blocks.bytes % 64 == 0) {
      return copy_row<64>(blocks, dim, to, from);
    }
    if (blocks.bytes % sizeof(double) == 0) {
      return copy_row<sizeof(double)>(blocks, dim, to, from);
    }
    if (blocks.bytes % sizeof(float) == 0) {
      return copy_row<sizeof(float)>(blocks, dim, to, from);
    }
  }
  for (int64_t i = 0; i < blocks.counts[dim]; ++i) {
    copy_blocks(blocks, dim + 1, to, from);
    to += blocks.to[dim];
    from += blocks.from[dim];
  }
}

bool is_plain_memory(const Tensor& tensor) {
  return is_plain(tensor) && is_in_host_memory(*tensor.unsafeGetTensorImpl()) &&
         !tensor.is_inference();
}

} // namespace

Part all_of(const Tensor& tensor) {
  return {0, at::DimVector(tensor.sizes()), at::DimVector(tensor.strides())};
}

bool copy_at_once(const Tensor& to, const Part& part, const Tensor& from, size_t in_front) {
  const bool may_be =
      !tracing && !is_any_mode_on() && !at::hasCallbacks() && to.dtype() == from.dtype() &&
      is_plain_memory(to) && is_plain_memory(from) &&
      to.storage().unsafeGetStorageImpl() != from.storage().unsafeGetStorageImpl() &&
      at::has_internal_overlap(to.unsafeGetTensorImpl()) != at::MemOverlap::Yes;
  Blocks blocks;
  if (!may_be || !find_blocks(part, from, in_front, blocks)) {
    return false;
  }
  copy_blocks(
      blocks,
      0,
      static_cast<char*>(to.mutable_data_ptr()) + part.offset * static_cast<int64_t>(to.itemsize()),
      static_cast<const char*>(from.const_data_ptr()));
  to.unsafeGetTensorImpl()->bump_version();
  return true;
}

void check_can_copy(const Tensor& to, const Tensor& from) {
  TORCH_CHECK(
      c10::canCast(from.scalar_type(), to.scalar_type()),
      "result type ",
      from.scalar_type(),
      " can't be cast to the desired output type ",
      to.scalar_type());
}

} // namespace torchlayers
