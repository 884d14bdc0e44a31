// Reductions, along dimensions or of all that a sample has.
#include <ATen/ATen.h>

#include <numeric>

#include "rules/batching/families.h"

namespace torchlayers {
namespace {

std::vector<int64_t> all_physical(int64_t rank) {
  std::vector<int64_t> dims(rank);
  std::iota(dims.begin(), dims.end(), 1);
  return dims;
}

// op(x, ..., dims, ...): none named means all.
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

// Both derivatives, this one's and max's without a dimension, share a gradient between equals.
// At nan, which equals nothing, amax's is nan.
bool largest(BatchedCall& call, size_t) {
  return can_reduce_all(call) && call.give([&] { return at::amax(call.value(0).flatten(1), 1); });
}

bool smallest(BatchedCall& call, size_t) {
  return can_reduce_all(call) && call.give([&] { return at::amin(call.value(0).flatten(1), 1); });
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
}

} // namespace torchlayers
