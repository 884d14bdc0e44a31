// Moving elements around, and joining tensors.
#include <limits>

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

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

c10::SymInt or_else(const c10::IValue& value, int64_t otherwise) {
  return value.isNone() ? c10::SymInt(otherwise) : value.toSymInt();
}

std::vector<int64_t> inverted(const std::vector<int64_t>& permutation) {
  const auto rank = static_cast<int64_t>(permutation.size());
  std::vector<int64_t> inverse(permutation.size());
  for (int64_t i = 0; i < rank; ++i) {
    inverse[at::maybe_wrap_dim(permutation[i], rank)] = i;
  }
  return inverse;
}

using Places = std::vector<size_t>;

void cut_apart(Pullback& call) {
  const Tensor& g = call.cotangents()[0];
  const int64_t dim = at::maybe_wrap_dim(call.integer(1), g.dim());
  c10::SymInt start = 0;
  for (const Target& target : call.targets()) {
    if (target.sizes.size() == 1 && target.sizes[0] == 0) {
      call.give(0, g.new_zeros({0}), target.member); // cat passes over these
      continue;
    }
    const c10::SymInt& length = target.sizes[dim];
    if (call.wants(0, target.member)) {
      call.give(0, g.narrow_symint(dim, start, length), target.member);
    }
    start += length;
  }
}

void unstacked(Pullback& call) {
  const Tensor& g = call.cotangents()[0];
  for (const Target& target : call.targets()) {
    if (call.wants(0, target.member)) {
      call.give(0, g.select(call.integer(1), target.member), target.member);
    }
  }
}

} // namespace

void add_shapes(Table& rules) {
  for (const char* name : {
           "roll",
           "rot90",
           "repeat",
           "diag_embed",
           "unfold_backward",
           "diagonal_backward",
           "narrow_copy",
       }) {
    LINEAR(name);
  }
  TRANSPOSED("flip", g.flip(c.integers(1)));
  TRANSPOSED("tril", g.tril_symint(c.size(1)));
  TRANSPOSED("triu", g.triu_symint(c.size(1)));
  TRANSPOSED("slice_backward", g.slice_symint(c.integer(2), c.size(3), c.size(4), c.size(5)));
  TRANSPOSED("select_backward", g.select_symint(c.integer(2), c.size(3)));
  TRANSPOSED("_unsafe_view", g.reshape_symint(c.sizes_of(0)));
  TRANSPOSED("_reshape_copy", g.reshape_symint(c.sizes_of(0)));
  TRANSPOSED("view", g.reshape_symint(c.sizes_of(0)));
  TRANSPOSED("_reshape_alias", g.reshape_symint(c.sizes_of(0)));
  TRANSPOSED("expand", g); // what broadcast is summed up
  TRANSPOSED("transpose.int", g.transpose(c.integer(1), c.integer(2)));
  TRANSPOSED("t", g.t());
  TRANSPOSED("permute", g.permute(inverted(c.integers(1))));
  TRANSPOSED("unsqueeze", g.squeeze(c.integer(1)));
  TRANSPOSED("squeeze", g.reshape_symint(c.sizes_of(0)));
  TRANSPOSED("squeeze.dim", g.reshape_symint(c.sizes_of(0)));
  TRANSPOSED("squeeze.dims", g.reshape_symint(c.sizes_of(0)));
  TRANSPOSED("select.int", at::select_backward_symint(g, c.sizes_of(0), c.integer(1), c.size(2)));
  TRANSPOSED(
      "slice.Tensor",
      at::slice_backward_symint(
          g,
          c.sizes_of(0),
          c.integer(1),
          or_else(c.arg(2), 0),
          or_else(c.arg(3), kEnd),
          c.size(4)));
  TRANSPOSED(
      "diagonal",
      at::diagonal_backward_symint(g, c.sizes_of(0), c.integer(1), c.integer(2), c.integer(3)));
  TRANSPOSED(
      "unfold",
      at::unfold_backward_symint(g, c.sizes_of(0), c.integer(1), c.integer(2), c.integer(3)));
  LINEAR("view_as_real");
  LINEAR("view_as_complex");
  TERMS("copy", {1, TERM(t.to(x.scalar_type()))});
  TERMS("fill.Tensor", {1, TERM(t)});
  WRITTEN("cat", joined);
  rules.add_pull("cat", std::make_unique<AtOnce>(Places{0}, Places{0}, Reads(), cut_apart));
  WRITTEN("stack", joined);
  rules.add_pull("stack", std::make_unique<AtOnce>(Places{0}, Places{0}, Reads(), unstacked));
  WRITTEN("block_diag", joined);
  WRITTEN("unsafe_split.Tensor", split);
  WRITTEN("unsafe_split_with_sizes", split);
  LINEAR_TOGETHER("slice_scatter", 0, 1);
  LINEAR_TOGETHER("select_scatter", 0, 1);
  LINEAR_TOGETHER("diagonal_scatter", 0, 1);
}

} // namespace torchlayers
