// Reading and writing elements by index or mask.
#include "families.h"
#include "forms.h"

namespace torchlayers {
namespace {

using at::Tensor;

Tensor with_tangent_and_zero(const Tensor& t, const Call& call, size_t scalar) {
  return call.with({{0, t}, {scalar, at::Scalar(0)}});
}

} // namespace

void add_indexing(Table& rules) {
  for (const char* name : {
           "index.Tensor",
           "_unsafe_index.Tensor",
           "index_select",
           "gather",
           "take",
           "masked_select",
           "embedding",
           "embedding_dense_backward",
       }) {
    LINEAR(name);
  }
  LINEAR_TOGETHER("index_put", 0, 2);
  LINEAR_TOGETHER("_unsafe_index_put", 0, 2);
  LINEAR_TOGETHER("index_add", 0, 3);
  LINEAR_TOGETHER("index_copy", 0, 3);
  LINEAR_TOGETHER("index_fill.int_Tensor", 0, 3);
  LINEAR_TOGETHER("scatter.src", 0, 3);
  LINEAR_TOGETHER("scatter_add", 0, 3);
  LINEAR_TOGETHER("masked_scatter", 0, 2);
  LINEAR_TOGETHER("put", 0, 2);
  ELEMENTWISE("index_fill.int_Scalar", with_tangent_and_zero(t, c, 3));
  ELEMENTWISE("scatter.value", with_tangent_and_zero(t, c, 3));
}

} // namespace torchlayers
