// Reductions, along dimensions or over all elements of a sample.

#include <limits>
#include <numeric>

#include "core/aten_functions.h"
#include "core/skip_autograd.h"
#include "rules/batching/families.h"

namespace torchlayers {
namespace {

using at::Tensor;

std::vector<int64_t> all_physical(int64_t rank) {
  std::vector<int64_t> dims(rank);
  std::iota(dims.begin(), dims.end(), 1);
  return dims;
}

// op(x, ..., dims, ...), where no dims means all.
bool over_dims(BatchedCall& call, size_t arg) {
  if (!call.only(0) || call.rank(0) == 0) {
    return false;
  }
  if (!call[arg].isNone() && !(call[arg].isIntList() && call[arg].toIntVector().empty())) {
    return call.run_at_dims(arg);
  }
  call.set(arg, all_physical(call.rank(0)));
  return call.run();
}

bool can_reduce_all(const BatchedCall& call) {
  return call.only(0) && call.rank(0) > 0;
}

// sum(x, dtype)
bool sum(BatchedCall& call, size_t) {
  return can_reduce_all(call) && call.give([&] {
    return at::sum(
        call.value(0), all_physical(call.rank(0)), false, call[1].toOptional<at::ScalarType>());
  });
}

// mean(x, dtype)
bool mean(BatchedCall& call, size_t) {
  return can_reduce_all(call) && call.give([&] {
    return at::mean(
        call.value(0), all_physical(call.rank(0)), false, call[1].toOptional<at::ScalarType>());
  });
}

// The element chosen among all those of a sample. Its derivative is shared by the elements equal to
// it, where nan equals nan. Reductions along a dimension differ: amax's derivative is nan at nan,
// and that of median.dim goes to one element. If the chosen element is not finite, the result is
// the mean of the equal ones, otherwise their amax, because a mean would round.
Tensor shared(const Tensor& x, const Tensor& chosen) {
  const Tensor is_finite = chosen.isfinite();
  const Tensor at = chosen.unsqueeze(1);
  const Tensor equals = (x == at).logical_or(x.isnan().logical_and(at.isnan()));
  const Tensor mean = at::where(equals, x, 0).sum(1) / equals.sum(1);
  const double lowest = -std::numeric_limits<double>::infinity();
  const Tensor most = at::where(equals.logical_and(is_finite.unsqueeze(1)), x, lowest).amax(1);
  return at::where(is_finite, most, mean);
}

// op(x), where `choose` does the same along dimension 1 of (batch, elements).
template <class Choose>
bool chosen(BatchedCall& call, const Choose& choose) {
  return can_reduce_all(call) && call.tensor(0).numel() > 0 && call.give([&] {
    const Tensor x = call.value(0).flatten(1);
    return is_plain(x) || !is_differentiable(x) ? choose(x) : shared(x, choose(x.detach()));
  });
}

bool largest(BatchedCall& call, size_t) {
  return chosen(call, [](const Tensor& x) { return x.amax(1); });
}

bool smallest(BatchedCall& call, size_t) {
  return chosen(call, [](const Tensor& x) { return x.amin(1); });
}

// torch's kernels (2.13) of both medians read out of bounds along an expanded dimension.
Tensor not_expanded(const Tensor& x, int64_t dim) {
  return x.sym_stride(dim).maybe_as_int() == 0 ? x.contiguous() : x;
}

bool median(BatchedCall& call, size_t) {
  return chosen(call, [](const Tensor& x) { return std::get<0>(not_expanded(x, 1).median(1)); });
}

bool nanmedian(BatchedCall& call, size_t) {
  return chosen(call, [](const Tensor& x) { return std::get<0>(not_expanded(x, 1).nanmedian(1)); });
}

// op(x, dim, keepdim)
bool median_along(BatchedCall& call, size_t arg) {
  if (!call.only(0)) {
    return false;
  }
  const auto dim = BatchedCall::physical(call[arg].toInt(), call.rank(0));
  return dim && call.give([&] {
    call.set(arg, *dim);
    return call.call_all(
        call.args_with([&](size_t i) { return not_expanded(call.value(i), *dim); }));
  });
}

} // namespace

void add_batched_reductions(BatchingTable& rules) {
  rules.add(
      {"sum.dim_IntList", "mean.dim", "amax", "amin", "nansum", "var.correction", "std.correction"},
      {over_dims, 1});
  rules.add({"var_mean.correction", "std_mean.correction", "logsumexp"}, {over_dims, 1});
  rules.add({"linalg_vector_norm", "norm.ScalarOpt_dim"}, {over_dims, 2});
  rules.add({"prod.dim_int", "all.dim", "any.dim"}, {at_dim, 1});
  rules.add({"sum"}, {sum});
  rules.add({"mean"}, {mean});
  rules.add({"max"}, {largest});
  rules.add({"min"}, {smallest});
  rules.add({"median"}, {median});
  rules.add({"nanmedian"}, {nanmedian});
  rules.add({"median.dim", "nanmedian.dim"}, {median_along, 1});
}

} // namespace torchlayers
