// Operators that work along dimensions, whose numbers shift by one behind the batch dimension, and
// operators on the last dimensions, which need no change.

#include "core/aten_functions.h"
#include "rules/batching/families.h"

namespace torchlayers {
namespace {

// op(tensors..., dim, ...), where all tensors are batched with one rank.
bool along_dim(BatchedCall& call, size_t arg) {
  return call.all_like(0) && call.run_at_dim(arg);
}

// The same along several dimensions, at least one.
bool along_dims(BatchedCall& call, size_t arg) {
  return call.all_like(0) && call[arg].isIntList() && !call[arg].toIntVector().empty() &&
         call.run_at_dims(arg);
}

// roll(x, shifts, dims): without dims, it rolls the flattened elements.
bool roll(BatchedCall& call, size_t) {
  if (!call[1].isIntList() || !call[2].isIntList() || !call[2].toIntVector().empty()) {
    return along_dims(call, 2);
  }
  const std::vector<int64_t> shifts = call[1].toIntVector();
  if (!call.only(0) || call.rank(0) == 0 || shifts.size() != 1) {
    return false;
  }
  return call.give([&] {
    const at::Tensor x = call.value(0);
    return call.rank(0) == 1 ? x.roll(shifts, 1)
                             : x.flatten(1).roll(shifts, 1).view_symint(x.sym_sizes());
  });
}

bool keeps_strides(at::MemoryFormat format) {
  return format == at::MemoryFormat::Preserve || format == at::MemoryFormat::Contiguous;
}

// op(x, ...) that keeps each element where it is. The memory format, argument `arg`, must not be
// one that requires a certain rank.
bool every_element(BatchedCall& call, size_t arg) {
  const bool names_format = arg != 0 && !call[arg].isNone();
  if (!call.only(0) || (names_format && !keeps_strides(call[arg].toMemoryFormat()))) {
    return false;
  }
  return call.run();
}

// Operators on the last `arg` dimensions.
bool of_last(BatchedCall& call, size_t arg) {
  if (!call.all_like(0) || call.rank(0) < static_cast<int64_t>(arg)) {
    return false;
  }
  return call.run();
}

// linalg_matrix_exp(x): its kernel assumes that the dimensions before x's matrices can be viewed as
// one.
bool matrix_exp(BatchedCall& call, size_t) {
  return call.only(0) && call.rank(0) >= 2 &&
         call.give([&] { return at::linalg_matrix_exp(call.value(0).contiguous()); });
}

} // namespace

void add_batched_dim_ops(BatchingTable& rules) {
  rules.add({"softmax.int", "log_softmax.int", "_softmax", "_log_softmax"}, {along_dim, 1});
  rules.add({"_softmax_backward_data", "_log_softmax_backward_data"}, {along_dim, 2});
  rules.add({"cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"}, {along_dim, 1});
  rules.add({"sort", "max.dim", "min.dim"}, {along_dim, 1});
  rules.add({"argmax", "argmin", "glu"}, {along_dim, 1});
  rules.add({"sort.stable", "topk"}, {along_dim, 2});
  rules.add({"flip"}, {along_dims, 1});
  rules.add({"roll"}, {roll});

  rules.add({"detach", "alias"}, {every_element});
  rules.add({"clone"}, {every_element, 1});
  rules.add({"ones_like", "zeros_like"}, {every_element, 5});
  rules.add({"pixel_shuffle", "pixel_unshuffle"}, {of_last, 3});
  rules.add({"linalg_matrix_exp"}, {matrix_exp});
  // The composite operators are called whole: decomposed above vmap, they would check for errors
  // and compute vectors as if every tensor had a gradient.
  rules.add(
      {"tril",
       "triu",
       "linalg_inv",
       "linalg_cholesky",
       "linalg_det",
       "linalg_eigvalsh",
       "linalg_svdvals",
       "linalg_inv_ex",
       "linalg_cholesky_ex",
       "linalg_qr",
       "linalg_eig",
       "_linalg_svd",
       "_linalg_eigh",
       "_linalg_det",
       "_linalg_slogdet"},
      {of_last, 2});
}

} // namespace torchlayers
