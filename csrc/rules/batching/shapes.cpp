// Views, and other operators that only rearrange elements.
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>

#include <algorithm>

#include "core/aten_functions.h"
#include "rules/batching/families.h"
#include "rules/plain_autograd.h"

namespace torchlayers {
namespace {

// op(x, sizes, ...)
bool to_sizes(BatchedCall& call, size_t arg) {
  if (!call.only(0)) {
    return false;
  }
  const auto sizes = call.physical_sizes(call[arg]);
  // Without elements, a size of -1 can't be inferred.
  if (!sizes || call.tensor(0).sym_numel() == 0 || call.batch_size() == 0) {
    return false;
  }
  call.set(arg, *sizes);
  return call.run();
}

// _unsafe_view(x, sizes), where x has no other references. If a batch dimension is not outermost in
// memory, the same holds for results computed from it, which may then have to be copied although a
// single sample would not.
bool unsafe_view(BatchedCall& call, size_t) {
  const auto sizes = call.physical_sizes(call[1]);
  if (!sizes || !call.only(0) || call.tensor(0).sym_numel() == 0 || call.batch_size() == 0) {
    return false;
  }
  return call.give([&] {
    const at::Tensor value = call.value(0);
    const at::SymDimVector viewed = at::infer_size_dv(*sizes, value.sym_numel());
    const bool fits =
        at::detail::computeStride(value.sym_sizes(), value.sym_strides(), viewed).has_value();
    return at::_unsafe_view_symint(fits ? value : value.contiguous(), viewed);
  });
}

// expand(x, sizes, *, implicit)
bool expand(BatchedCall& call, size_t) {
  const auto sizes = call.physical_sizes(call[1]);
  if (!sizes || !call.only(0)) {
    return false;
  }
  const auto rank = static_cast<int64_t>(sizes->size()) - 1;
  if (rank < call.rank(0)) {
    return false;
  }
  return call.give([&] { return BatchedCall::raised(call.value(0), rank).expand_symint(*sizes); });
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

// op(x, ..., dim0, dim1), with the two arguments adjacent.
bool at_two_dims(BatchedCall& call, size_t arg) {
  if (!call.only(0) || !call[arg].isInt() || !call[arg + 1].isInt()) {
    return false;
  }
  const auto first = BatchedCall::physical(call[arg].toInt(), call.rank(0));
  const auto second = BatchedCall::physical(call[arg + 1].toInt(), call.rank(0));
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
  auto dims = call.physical(call[1], call.rank(0));
  if (!dims || static_cast<int64_t>(dims->size()) != call.rank(0)) {
    return false;
  }
  dims->insert(dims->begin(), 0);
  call.set(1, *dims);
  return call.run();
}

// t(x): the value below has three dimensions.
bool transpose(BatchedCall& call, size_t) {
  return call.only(0) && call.rank(0) == 2 &&
         call.give([&] { return call.value(0).transpose(1, 2); });
}

bool unsqueeze(BatchedCall& call, size_t) {
  if (!call.only(0)) {
    return false;
  }
  const auto dim = BatchedCall::physical(call[1].toInt(), call.rank(0) + 1);
  if (!dim) {
    return false;
  }
  call.set(1, *dim);
  return call.run();
}

// constant_pad_nd(x, pad, value): pad has two numbers per dimension, starting from the last one.
bool pad(BatchedCall& call, size_t) {
  if (!call.only(0) || !call[1].isIntList() ||
      static_cast<int64_t>(call[1].toIntVector().size()) > 2 * call.rank(0)) {
    return false;
  }
  return call.run();
}

// op(gradient, sizes of x, dim, ...)
bool from_part(BatchedCall& call, size_t) {
  const auto sizes = call.physical_sizes(call[1]);
  if (!call.only(0) || !sizes) {
    return false;
  }
  const auto dim = BatchedCall::physical(call[2].toInt(), static_cast<int64_t>(sizes->size()) - 1);
  if (!dim) {
    return false;
  }
  call.set(1, *sizes);
  call.set(2, *dim);
  return call.run();
}

// op(x), which needs no change for a batch.
bool alone(BatchedCall& call, size_t) {
  return call.only(0) && call.run();
}

// Calls the operator on x and a part to write into it, each batched or expanded; `dims` are the
// arguments that name dimensions of x that the part lacks, or covers only partly.
bool put_into(BatchedCall& call, std::initializer_list<size_t> dims) {
  std::vector<int64_t> physical;
  for (const size_t arg : dims) {
    const auto dim = BatchedCall::physical(call[arg].toInt(), call.rank(0));
    if (!dim) {
      return false;
    }
    physical.push_back(*dim);
  }
  if (!call.is_batched(0) && !call.is_batched(1)) {
    return false;
  }
  return call.give([&] {
    Args args = call.args_with([&](size_t i) { return call.expanded(i); });
    size_t i = 0;
    for (const size_t arg : dims) {
      args[arg] = physical[i++];
    }
    return call.call(std::move(args));
  });
}

// op(x, part, dim, ...). torch's rule for select_scatter writes the part in place, which changes
// the function that the gradient belongs to.
bool into_part(BatchedCall& call, size_t missing) {
  return call.rank(1) + static_cast<int64_t>(missing) == call.rank(0) && put_into(call, {2});
}

// diagonal_scatter(x, part, offset, dim0, dim1)
bool into_diagonal(BatchedCall& call, size_t) {
  return call.rank(1) + 1 == call.rank(0) && put_into(call, {3, 4});
}

// copy(x, source, non_blocking)
bool copy(BatchedCall& call, size_t) {
  const int64_t rank = call.rank(0);
  const bool is_batched = call.is_batched(1);
  if (call.rank(1) > rank || (!is_batched && !call.is_batched(0))) {
    return false;
  }
  return call.give([&] {
    const at::Tensor source =
        is_batched ? BatchedCall::raised(call.value(1), rank) : call.tensor(1);
    return call.call({call.expanded(0), source, call.flag(2)});
  });
}

// fill(x, y)
bool fill(BatchedCall& call, size_t) {
  if (call.rank(1) != 0 || (!call.is_batched(0) && !call.is_batched(1))) {
    return false;
  }
  return call.give([&] {
    return copied(
        call.expanded(0),
        call.is_batched(1) ? BatchedCall::raised(call.value(1), call.rank(0)) : call.tensor(1));
  });
}

// _unpack_dual(dual, level): unpacks the values.
bool unpack_dual(BatchedCall& call, size_t) {
  return call.give_some({true, true}, [&] {
    auto [primal, tangent] = at::_unpack_dual(call.value(0), call[1].toInt());
    return std::vector<at::Tensor>{primal, tangent};
  });
}

// _make_dual(primal, tangent, level); torch does not write tangents to memory that samples share.
bool make_dual(BatchedCall& call, size_t) {
  const int64_t level = call[2].toInt();
  if (call.tensor(0).sym_sizes() != call.tensor(1).sym_sizes()) {
    return false;
  }
  return call.give_some({true}, [&] {
    const at::Tensor primal = call.is_batched(0) ? call.value(0) : call.expanded(0).clone();
    return std::vector<at::Tensor>{at::_make_dual(primal, call.expanded(1), level)};
  });
}

} // namespace

void add_batched_shapes(BatchingTable& rules) {
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
  rules.add({"_neg_view", "_fw_primal", "detach_copy", "record_stream"}, {alone});
  rules.add({"select_scatter"}, {into_part, 1});
  rules.add({"slice_scatter"}, {into_part, 0});
  rules.add({"diagonal_scatter"}, {into_diagonal});
  rules.add({"_unpack_dual"}, {unpack_dual});
  rules.add({"_make_dual"}, {make_dual});
  rules.add({"copy"}, {copy});
  rules.add({"fill.Tensor"}, {fill});
}

} // namespace torchlayers
