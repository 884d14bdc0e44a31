// Operators that take a mask.
#include <ATen/ExpandUtils.h>

#include "core/aten_functions.h"
#include "core/device.h"
#include "core/errors.h"
#include "core/skip_autograd.h"
#include "rules/batching/families.h"

namespace torchlayers {
namespace {

using at::Tensor;

// Numbers the true elements of a mask in each sample, from one; other elements have the number of
// the last true one before them: (B, n), for a mask with or without a batch dimension, expanded to
// these sizes.
Tensor numbered(const BatchedCall& call, size_t mask, at::IntArrayRef sizes) {
  const int64_t count = c10::multiply_integers(sizes);
  if (!call.is_batched(mask)) {
    return call.tensor(mask)
        .expand(sizes)
        .reshape({1, count})
        .cumsum(1)
        .expand({call.count(), count});
  }
  std::vector<int64_t> all(sizes.begin(), sizes.end());
  all.insert(all.begin(), call.count());
  return BatchedCall::raised(call.value(mask), static_cast<int64_t>(sizes.size()))
      .expand(all)
      .reshape({call.count(), count})
      .cumsum(1);
}

// Expanded to the batch and to these sizes.
Tensor spread(const BatchedCall& call, size_t i, at::IntArrayRef sizes) {
  std::vector<int64_t> all(sizes.begin(), sizes.end());
  all.insert(all.begin(), call.count());
  return BatchedCall::raised(call.expanded(i), static_cast<int64_t>(sizes.size())).expand(all);
}

// One row per sample, with an additional element in front.
Tensor padded(const Tensor& values) {
  const int64_t count = values[0].numel();
  return at::constant_pad_nd(values.reshape({values.size(0), count}), {1, 0});
}

void check_enough(const BatchedCall& call, const Tensor& numbers, int64_t available) {
  if (numbers.size(1) > available && is_plain(numbers) &&
      is_in_host_memory(*numbers.unsafeGetTensorImpl())) {
    const auto needed = numbers.select(1, -1).max().item<int64_t>();
    if (needed > available) {
      raise_as(
          ErrorClass::BatchedOperator,
          "{}: masked_scatter's mask has {} true elements in a sample, but the source has only {} "
          "elements. Pass at least as many.",
          call.layer_name(),
          needed,
          available);
    }
  }
}

bool has_numbers_for_sizes(const BatchedCall& call) {
  bool has = call.is_batch_size_known() && call.count() > 0;
  for (size_t i = 0; i < call.size(); ++i) {
    has = has && !(call.has_tensor(i) &&
                   call.tensor(i).unsafeGetTensorImpl()->has_symbolic_sizes_strides());
  }
  return has;
}

// masked_scatter(x, mask, source): the k-th true element gets the k-th element of the source.
bool masked_scatter(BatchedCall& call, size_t) {
  const bool fits = has_numbers_for_sizes(call) && call.tensor(1).scalar_type() == at::kBool &&
                    call.tensor(0).scalar_type() == call.tensor(2).scalar_type() &&
                    (call.is_batched(0) || call.is_batched(1) || call.is_batched(2));
  if (!fits) {
    return false;
  }
  const auto sizes = at::infer_size(call.tensor(0).sizes(), call.tensor(1).sizes());
  return call.give([&] {
    const Tensor x = spread(call, 0, sizes);
    const Tensor numbers = numbered(call, 1, sizes);
    check_enough(call, numbers, call.tensor(2).numel());
    const Tensor picked = padded(call.expanded(2)).gather(1, numbers).reshape(x.sizes());
    const Tensor mask = call.value(1);
    return at::where(call.is_batched(1) ? BatchedCall::raised(mask, x.dim() - 1) : mask, picked, x);
  });
}

// masked_scatter_backward(gradient, mask, sizes of the source): unused elements of the source get
// zero.
bool masked_scatter_backward(BatchedCall& call, size_t) {
  const bool fits = has_numbers_for_sizes(call) && call[2].isIntList() &&
                    call.tensor(1).scalar_type() == at::kBool &&
                    (call.is_batched(0) || call.is_batched(1));
  if (!fits) {
    return false;
  }
  const auto sizes = at::infer_size(call.tensor(0).sizes(), call.tensor(1).sizes());
  std::vector<int64_t> of_source = call[2].toIntVector();
  const int64_t count = c10::multiply_integers(of_source);
  of_source.insert(of_source.begin(), call.count());
  return call.give([&] {
    const Tensor gradient = spread(call, 0, sizes);
    const Tensor mask = spread(call, 1, sizes);
    const Tensor numbers = numbered(call, 1, sizes);
    const Tensor rows = at::where(mask, gradient, 0).reshape(numbers.sizes());
    return rows.new_zeros({call.count(), count + 1})
        .scatter_add(1, at::where(mask.reshape(numbers.sizes()), numbers, 0), rows)
        .narrow(1, 1, count)
        .reshape(of_source);
  });
}

// masked_fill(x, mask, value)
bool masked_fill(BatchedCall& call, size_t) {
  const at::ScalarType dtype = call.tensor(0).scalar_type();
  const bool fits = call.rank(2) == 0 && call.tensor(1).scalar_type() == at::kBool &&
                    (dtype == call.tensor(2).scalar_type() ||
                     (at::isFloatingType(dtype) && call.tensor(2).is_floating_point())) &&
                    (call.is_batched(0) || call.is_batched(1) || call.is_batched(2));
  if (!fits) {
    return false;
  }
  const int64_t rank = std::max(call.rank(0), call.rank(1));
  const auto lined_up = [&](size_t i) {
    return call.is_batched(i) ? BatchedCall::raised(call.value(i), rank) : call.tensor(i);
  };
  return call.give([&] { return at::where(lined_up(1), lined_up(2).to(dtype), lined_up(0)); });
}

// A mask of the positions that an index points to along its dimension: (size), or (B, size) if each
// sample has its own index.
Tensor pointed_at(const BatchedCall& call, size_t i, int64_t size) {
  const bool is_batched = call.is_batched(i);
  Tensor index = is_batched ? call.value(i).reshape({call.count(), -1}) : call.tensor(i);
  const auto is_mask = index.options().dtype(at::kBool);
  if (!is_batched) {
    return at::zeros({size}, is_mask).index_fill(0, index, 1);
  }
  index = at::where(index < 0, index + size, index);
  return at::zeros({call.count(), size}, is_mask).scatter(1, index, 1);
}

// index_fill(x, dim, index, value), where samples have different values or indices. torch's rule
// writes all samples' indices into an x that they share.
bool index_fill(BatchedCall& call, size_t) {
  const bool has_tensor = call.has_tensor(3);
  const bool fits = has_numbers_for_sizes(call) && (call.is_batched(2) || call.is_batched(3)) &&
                    (!has_tensor || (call.rank(3) == 0 &&
                                     call.tensor(0).scalar_type() == call.tensor(3).scalar_type()));
  const auto dim = BatchedCall::physical(call[1].toInt(), std::max<int64_t>(call.rank(0), 1));
  if (!fits || !dim) {
    return false;
  }
  return call.give([&] {
    const Tensor x = call.expanded(0);
    const int64_t size = call.rank(0) == 0 ? 1 : call.tensor(0).size(*dim - 1);
    at::DimVector sizes(x.dim(), 1);
    sizes[0] = call.is_batched(2) ? x.size(0) : 1;
    if (call.rank(0) > 0) {
      sizes[*dim] = size;
    }
    const Tensor mask = pointed_at(call, 2, size).reshape(sizes);
    if (!has_tensor) {
      return x.masked_fill(mask, call[3].toScalar());
    }
    const Tensor value =
        call.is_batched(3) ? BatchedCall::raised(call.value(3), call.rank(0)) : call.tensor(3);
    return at::where(mask, value, x);
  });
}

} // namespace

void add_batched_masked(BatchingTable& rules) {
  rules.add({"masked_scatter"}, {masked_scatter});
  rules.add({"masked_fill.Tensor"}, {masked_fill});
  rules.add({"masked_scatter_backward"}, {masked_scatter_backward});
  rules.add({"index_fill.int_Tensor", "index_fill.int_Scalar"}, {index_fill});
}

} // namespace torchlayers
