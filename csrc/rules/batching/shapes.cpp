// Views, and what else only arranges elements.
#include <ATen/ATen.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>

#include "families.h"

namespace torchlayers {
namespace {

// op(x, sizes, ...)
bool to_sizes(BatchedCall& call, size_t arg) {
  if (!call.only(0)) {
    return false;
  }
  const auto sizes = call.with_batch(call[arg]);
  // Of no elements, a size left open is no batch's to decide.
  if (!sizes || call.tensor(0).numel() == 0 || call.batch_size() == 0) {
    return false;
  }
  call.set(arg, *sizes);
  return call.run();
}

// _unsafe_view(x, sizes) of a tensor that nobody else has. Batches that lie in memory in another
// way than in front of their samples lie so in what is computed of them, and may have to be copied
// where no sample by itself would be.
bool unsafe_view(BatchedCall& call, size_t) {
  const auto sizes = call.with_batch(call[1]);
  if (!sizes || !call.only(0) || call.tensor(0).numel() == 0 || call.batch_size() == 0) {
    return false;
  }
  return call.give([&] {
    const at::Tensor value = call.value(0);
    const at::DimVector viewed = at::infer_size_dv(*sizes, value.numel());
    const bool fits = at::detail::computeStride(value.sizes(), value.strides(), viewed).has_value();
    return at::_unsafe_view(fits ? value : value.contiguous(), viewed);
  });
}

// expand(x, sizes, *, implicit)
bool expand(BatchedCall& call, size_t) {
  const auto sizes = call.with_batch(call[1]);
  if (!sizes || !call.only(0)) {
    return false;
  }
  const auto rank = static_cast<int64_t>(sizes->size()) - 1;
  if (rank < call.rank(0)) {
    return false;
  }
  return call.give([&] { return BatchedCall::raised(call.value(0), rank).expand(*sizes); });
}

// repeat(x, repeats)
bool repeat(BatchedCall& call, size_t) {
  if (!call[1].isIntList() || !call.only(0)) {
    return false;
  }
  std::vector<int64_t> repeats = call[1].toIntVector();
  const auto rank = static_cast<int64_t>(repeats.size());
  if (rank < call.rank(0)) {
    return false;
  }
  repeats.insert(repeats.begin(), 1);
  return call.give([&] { return BatchedCall::raised(call.value(0), rank).repeat(repeats); });
}

// squeeze.dims(x, dims)
bool at_dims(BatchedCall& call, size_t arg) {
  return call.only(0) && call.run_at_dims(arg);
}

// op(x, ..., dim0, dim1), the two side by side.
bool at_two_dims(BatchedCall& call, size_t arg) {
  if (!call.only(0) || !call[arg].isInt() || !call[arg + 1].isInt()) {
    return false;
  }
  const auto first = BatchedCall::behind_batch(call[arg].toInt(), call.rank(0));
  const auto second = BatchedCall::behind_batch(call[arg + 1].toInt(), call.rank(0));
  if (!first || !second) {
    return false;
  }
  call.set(arg, *first);
  call.set(arg + 1, *second);
  return call.run();
}

bool permute(BatchedCall& call, size_t) {
  if (!call.only(0)) {
    return false;
  }
  auto dims = call.behind_batch(call[1], call.rank(0));
  if (!dims || static_cast<int64_t>(dims->size()) != call.rank(0)) {
    return false;
  }
  dims->insert(dims->begin(), 0);
  call.set(1, *dims);
  return call.run();
}

// t(x): below, two dimensions are three.
bool transpose(BatchedCall& call, size_t) {
  return call.only(0) && call.rank(0) == 2 &&
         call.give([&] { return call.value(0).transpose(1, 2); });
}

bool unsqueeze(BatchedCall& call, size_t) {
  if (!call.only(0)) {
    return false;
  }
  const auto dim = BatchedCall::behind_batch(call[1].toInt(), call.rank(0) + 1);
  if (!dim) {
    return false;
  }
  call.set(1, *dim);
  return call.run();
}

// constant_pad_nd(x, pad, value): two numbers for each dimension, from the last on.
bool pad(BatchedCall& call, size_t) {
  if (!call.only(0) || !call[1].isIntList() ||
      static_cast<int64_t>(call[1].toIntVector().size()) > 2 * call.rank(0)) {
    return false;
  }
  return call.run();
}

// op(gradient, sizes of x, dim, ...)
bool from_part(BatchedCall& call, size_t) {
  if (!call.only(0) || !call[1].isIntList()) {
    return false;
  }
  const auto rank = static_cast<int64_t>(call[1].toIntVector().size());
  const auto dim = BatchedCall::behind_batch(call[2].toInt(), rank);
  if (!dim) {
    return false;
  }
  call.set(1, *call.with_batch(call[1]));
  call.set(2, *dim);
  return call.run();
}

} // namespace

void add_batched_shapes(BatchTable& rules) {
  rules.add({"view", "reshape"}, {to_sizes, 1});
  rules.add({"_unsafe_view"}, {unsafe_view});
  rules.add({"expand"}, {expand});
  rules.add({"repeat"}, {repeat});
  rules.add({"select.int", "slice.Tensor", "squeeze.dim", "unbind.int"}, {at_dim, 1});
  rules.add({"split.Tensor", "split_with_sizes"}, {at_dim, 2});
  rules.add({"squeeze.dims"}, {at_dims, 1});
  rules.add({"transpose.int"}, {at_two_dims, 1});
  rules.add({"diagonal"}, {at_two_dims, 2});
  rules.add({"permute"}, {permute});
  rules.add({"t"}, {transpose});
  rules.add({"unsqueeze"}, {unsqueeze});
  rules.add({"constant_pad_nd"}, {pad});
  rules.add({"select_backward", "slice_backward", "unfold_backward"}, {from_part});
}

} // namespace torchlayers
