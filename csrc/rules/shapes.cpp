// Moving elements around, and joining tensors.
#include "families.h"
#include "forms.h"

namespace torchlayers {
namespace {

using at::Tensor;

// Linear in all the tensors of the list that comes first, at once.
void joined(Call& call) {
  call.run();
  const auto tensors = call.arg(0).toTensorVector();
  const auto tangents = call.tangents(0);
  std::vector<Tensor> filled;
  for (size_t i = 0; i < tensors.size(); ++i) {
    filled.push_back(tangents[i].defined() ? tangents[i] : at::zeros_like(tensors[i]));
  }
  call.set_tangent(0, call.with({{0, filled}}));
}

void split(Call& call) {
  call.run();
  const Args parts = call.all_with({{0, call.tangent(0)}});
  call.set_tangents(0, parts[0].toTensorVector());
}

} // namespace

void add_shapes(Table& rules) {
  for (const char* name : {
           "flip",
           "roll",
           "rot90",
           "tril",
           "triu",
           "repeat",
           "diag_embed",
           "unfold_backward",
           "slice_backward",
           "select_backward",
           "diagonal_backward",
           "_unsafe_view",
           "_reshape_copy",
           "narrow_copy",
       }) {
    LINEAR(name);
  }
  for (const char* view : {
           "view",
           "_reshape_alias",
           "expand",
           "transpose.int",
           "t",
           "permute",
           "unsqueeze",
           "squeeze",
           "squeeze.dim",
           "squeeze.dims",
           "select.int",
           "slice.Tensor",
           "diagonal",
           "unfold",
           "view_as_real",
           "view_as_complex",
       }) {
    LINEAR(view);
  }
  TERMS("copy", {1, TERM(t.to(x.scalar_type()))});
  TERMS("fill.Tensor", {1, TERM(t)});
  WRITTEN("cat", joined);
  WRITTEN("stack", joined);
  WRITTEN("block_diag", joined);
  WRITTEN("unsafe_split.Tensor", split);
  WRITTEN("unsafe_split_with_sizes", split);
  LINEAR_TOGETHER("slice_scatter", 0, 1);
  LINEAR_TOGETHER("select_scatter", 0, 1);
  LINEAR_TOGETHER("diagonal_scatter", 0, 1);
}

} // namespace torchlayers
