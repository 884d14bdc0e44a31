// Reading and writing elements by index or mask.
#include "families.h"
#include "forms.h"

namespace torchlayers {
namespace {

using at::Tensor;

Tensor with_tangent_and_zero(const Tensor& t, const Operands& call, size_t scalar) {
  return call.with({{0, t}, {scalar, at::Scalar(0)}});
}

// _embedding_bag(weight, indices, offsets, …, mode, sparse, per_sample_weights, …): sums and
// means are linear in the weights; a maximum is where its index says.
void embedding_bag(Call& call) {
  constexpr int64_t kMax = 2;
  call.run();
  Tensor sum;
  for (size_t arg : {0, 6}) {
    if (call.has_tangent(arg) && call.integer(4) != kMax) {
      sum = sum_of({sum, call.with({{arg, call.tangent(arg)}})});
    }
  }
  if (call.has_tangent(0) && call.integer(4) == kMax) {
    const Tensor& rows = call.result(3);
    sum = call.tangent(0).gather(0, rows.clamp_min(0)).masked_fill(rows < 0, 0);
  }
  call.set_tangent(0, sum);
}

Tensor put_by_index(const Tensor& g, c10::SymIntArrayRef sizes, const c10::IValue& indices) {
  return at::index_put(
      g.new_zeros_symint(sizes),
      indices.toOptionalTensorList(),
      g,
      /*accumulate=*/true);
}

} // namespace

void add_indexing(Table& rules) {
  for (const char* name : {
           "take",
           "masked_select",
           "embedding_dense_backward",
       }) {
    LINEAR(name);
  }
  TRANSPOSED("index.Tensor", put_by_index(g, c.sizes_of(0), c.arg(1)));
  TRANSPOSED("_unsafe_index.Tensor", put_by_index(g, c.sizes_of(0), c.arg(1)));
  TRANSPOSED("index_select", g.new_zeros_symint(c.sizes_of(0)).index_add(c.integer(1), c[2], g));
  TRANSPOSED("gather", g.new_zeros_symint(c.sizes_of(0)).scatter_add(c.integer(1), c[2], g));
  TRANSPOSED(
      "embedding",
      at::embedding_backward_symint(g, c[1], c.sizes_of(0)[0], c.size(2), c.flag(3), c.flag(4)));
  WRITTEN("_embedding_bag", embedding_bag);
  MULTILINEAR("_embedding_bag_backward", 0, 10);
  MULTILINEAR("_embedding_bag_per_sample_weights_backward", 0, 1);
  LINEAR_TOGETHER("index_put", 0, 2);
  LINEAR_TOGETHER("_unsafe_index_put", 0, 2);
  LINEAR_TOGETHER("index_add", 0, 3);
  LINEAR_TOGETHER("index_copy", 0, 3);
  LINEAR_TOGETHER("index_fill.int_Tensor", 0, 3);
  LINEAR_TOGETHER("scatter.src", 0, 3);
  LINEAR_TOGETHER("scatter_add", 0, 3);
  LINEAR_TOGETHER("masked_scatter", 0, 2);
  LINEAR_TOGETHER("put", 0, 2);
  TERMS("index_fill.int_Scalar", {0, TANGENT(with_tangent_and_zero(t, c, 3))});
  TERMS("scatter.value", {0, TANGENT(with_tangent_and_zero(t, c, 3))});
}

} // namespace torchlayers
