// Named axes under vmap. NOTE [Named axes].
#include "rules/collectives/axes.h"

#include <limits>

#include "core/aten_functions.h"
#include "core/device.h"
#include "core/errors.h"
#include "rules/batching/families.h"

namespace torchlayers {
namespace {

using at::Tensor;

// Whether the axis, the last argument, is the one of this vmap.
bool is_own(const BatchedCall& call) {
  const c10::IValue& axis = call[call.size() - 1];
  return axis.isString() && axis.toStringRef() == axis_of_vmap(call.level());
}

// Operators on another axis: elementwise, or along these dimensions of a sample.
bool of_another(BatchedCall& call, std::initializer_list<size_t> dims) {
  if (!call.only(0)) {
    return false;
  }
  for (const size_t arg : dims) {
    call.set(arg, call[arg].toInt() + 1);
  }
  return call.run();
}

bool psum(BatchedCall& call, size_t) {
  if (!is_own(call)) {
    return of_another(call, {});
  }
  return call.give_unbatched(
      [&] { return call.is_batched(0) ? call.value(0).sum(0) : call.tensor(0) * call.count(); });
}

// The maximum over no samples: a rank may have none if a batch is split over ranks.
Tensor lowest(const Tensor& sample) {
  if (sample.is_floating_point()) {
    return at::full_like(sample, -std::numeric_limits<double>::infinity());
  }
  const bool is_signed = c10::isSignedType(sample.scalar_type());
  const auto bits = 8 * static_cast<int>(sample.element_size());
  return at::full_like(
      sample, is_signed ? std::numeric_limits<int64_t>::min() >> (64 - bits) : int64_t{0});
}

bool pmax(BatchedCall& call, size_t) {
  if (!is_own(call)) {
    return of_another(call, {});
  }
  return call.give_unbatched([&] {
    if (call.count() == 0) {
      const Tensor x = call.is_batched(0) ? call.value(0) : call.tensor(0);
      return lowest(call.is_batched(0) ? x.new_zeros(x.sizes().slice(1)) : x);
    }
    return call.is_batched(0) ? call.value(0).amax(0) : call.tensor(0).clone();
  });
}

bool pvary(BatchedCall& call, size_t) {
  if (!is_own(call)) {
    return of_another(call, {});
  }
  return call.give([&] { return call.expanded(0).clone(); });
}

// all_gather(x, dim, size, axis): every sample gets all of them.
bool all_gather(BatchedCall& call, size_t) {
  if (!is_own(call)) {
    return of_another(call, {1});
  }
  return call.give_unbatched(
      [&] { return call.expanded(0).movedim(0, call[1].toInt()).contiguous(); });
}

// psum_scatter(x, dim, size, axis)
bool psum_scatter(BatchedCall& call, size_t) {
  if (!is_own(call)) {
    return of_another(call, {1});
  }
  return call.give([&] {
    const Tensor sum = call.is_batched(0) ? call.value(0).sum(0) : call.tensor(0) * call.count();
    return sum.movedim(call[1].toInt(), 0).contiguous();
  });
}

// all_to_all(x, split, join, size, axis)
bool all_to_all(BatchedCall& call, size_t) {
  if (!is_own(call)) {
    return of_another(call, {1, 2});
  }
  return call.give([&] {
    const auto sent = call.expanded(0).chunk(call.count(), call[1].toInt() + 1);
    return at::cat(at::stack(sent).unbind(1), call[2].toInt() + 1);
  });
}

// ppermute(x, sources, axis)
bool ppermute(BatchedCall& call, size_t) {
  if (!is_own(call)) {
    return of_another(call, {});
  }
  return call.give([&] {
    const Tensor x = call.expanded(0);
    std::vector<Tensor> received;
    for (const int64_t source : call[1].toIntVector()) {
      received.push_back(source >= 0 ? x.select(0, source) : at::zeros_like(x.select(0, 0)));
    }
    return at::stack(received);
  });
}

// own_part and joined_parts(x, dim, ...), whose axis is always a process group's.
bool of_parts(BatchedCall& call, size_t) {
  return of_another(call, {1});
}

// axis_index(device, axis)
bool axis_index(BatchedCall& call, size_t) {
  if (!is_own(call)) {
    return false;
  }
  const at::Device device = call[0].isNone() ? at::Device(kHost) : call[0].toDevice();
  return call.give([&] { return at::arange(call.count(), device); });
}

// samples_to_dim(x, dim, axis): turns the batch dimension into an ordinary one, so that another
// transform than this vmap runs on the samples. NOTE [Samples of their own].
bool samples_to_dim(BatchedCall& call, size_t) {
  if (!is_own(call)) {
    return of_another(call, {1});
  }
  // An unbatched value is copied, not expanded: its tangent, which may differ between samples,
  // needs the same strides.
  return call.give_unbatched([&] {
    const Tensor rows =
        call.is_batched(0) ? call.value(0) : call.expanded(0).clone(at::MemoryFormat::Contiguous);
    return rows.movedim(0, call[1].toInt());
  });
}

// dim_to_samples(x, dim, axis): the inverse.
bool dim_to_samples(BatchedCall& call, size_t) {
  if (!is_own(call)) {
    return of_another(call, {1});
  }
  if (call.is_batched(0)) {
    raise(
        "control flow on a batched predicate: a branch or loop body used a tensor batched by {} "
        "from outside it in a way that torchlayers can't detect (in a C++ extension, or captured "
        "by a Function). Pass it as an operand.",
        call.layer_name());
  }
  return call.give([&] { return call.tensor(0).movedim(call[1].toInt(), 0); });
}

} // namespace

void add_batched_axes(BatchingTable& rules) {
  rules.add(
      {"torchlayers::psum", "torchlayers::psum_invariant"}, {psum, 0, /*counts_samples=*/true});
  rules.add({"torchlayers::pmax"}, {pmax, 0, /*counts_samples=*/true});
  rules.add({"torchlayers::pvary", "torchlayers::shared"}, {pvary, 0, /*counts_samples=*/true});
  rules.add({"torchlayers::all_gather"}, {all_gather, 0, /*counts_samples=*/true});
  rules.add({"torchlayers::psum_scatter"}, {psum_scatter, 0, /*counts_samples=*/true});
  rules.add({"torchlayers::all_to_all"}, {all_to_all, 0, /*counts_samples=*/true});
  rules.add({"torchlayers::ppermute"}, {ppermute, 0, /*counts_samples=*/true});
  rules.add(
      {"torchlayers::own_part", "torchlayers::joined_parts"},
      {of_parts, 0, /*counts_samples=*/true});
  rules.add({"torchlayers::axis_index"}, {axis_index, 0, /*counts_samples=*/true});
  rules.add({"torchlayers::samples_to_dim"}, {samples_to_dim, 0, /*counts_samples=*/true});
  rules.add({"torchlayers::dim_to_samples"}, {dim_to_samples, 0, /*counts_samples=*/true});
}

} // namespace torchlayers
