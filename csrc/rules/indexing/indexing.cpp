// Reading and writing elements by index or mask.
#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

Tensor with_tangent_and_zero(const Tensor& t, const Operands& call, size_t scalar) {
  return call.with({{0, t}, {scalar, at::Scalar(0)}});
}

// embedding_dense_backward(g, indices, num_weights, padding_idx, scale_grad_by_freq)
Tensor embedding_of_gradient(
    const Tensor& g, const Tensor& indices, int64_t padding, bool divides_by_count) {
  Tensor rows = at::embedding(g, indices);
  if (divides_by_count) {
    const Tensor ones = at::ones_like(indices, g.options());
    const Tensor counts =
        g.new_zeros_symint(g.sym_size(0)).index_add(0, indices.flatten(), ones.flatten());
    rows = rows / counts.index_select(0, indices.flatten()).view_as(indices).unsqueeze(-1);
  }
  return padding < 0 ? rows : zero_where((indices == padding).unsqueeze(-1), rows);
}

using Indices = c10::List<std::optional<Tensor>>;

Tensor put_zeros(const Tensor& g, const Indices& indices) {
  return at::index_put(g, indices, g.new_zeros({}));
}

Tensor put_zeros(const Tensor& g, const Tensor& places) {
  return g.put(places, g.new_zeros_symint(places.sym_sizes()));
}

// The part of the written tensor that the index covers: a corner of the index's size.
Tensor in_corner(const Tensor& read, c10::SymIntArrayRef sizes) {
  if (read.sym_sizes() == sizes) {
    return read;
  }
  std::vector<c10::SymInt> padding;
  for (size_t dim = sizes.size(); dim-- > 0;) {
    padding.emplace_back(0);
    padding.push_back(sizes[dim] - read.sym_sizes()[dim]);
  }
  return at::constant_pad_nd_symint(read, padding, 0);
}

Tensor put_by_mask(const Tensor& g, c10::SymIntArrayRef sizes, const Tensor& mask) {
  const auto broadcast = at::infer_size_symint(sizes, mask.sym_sizes());
  Tensor zeros = g.new_zeros_symint(broadcast);
  return may_write({g, mask}) ? zeros.masked_scatter_(mask, g) : zeros.masked_scatter(mask, g);
}

// The sum over the elements that index_fill fills.
Tensor sum_of_filled(const Tensor& g, int64_t dim, const Tensor& indices) {
  const Tensor is_filled = at::zeros_like(g, at::kBool).index_fill(dim, indices, 1);
  return at::where(is_filled, g, 0).sum();
}

// toOptionalTensorList() rejects a list that TorchScript has folded into a constant: its element
// type is then a tensor type with a fixed shape.
c10::List<std::optional<Tensor>> indices_of(const c10::IValue& list) {
  c10::List<std::optional<Tensor>> indices;
  for (const c10::IValue& index : list.toListRef()) {
    indices.push_back(index.toOptional<Tensor>());
  }
  return indices;
}

// Zeros with the gradient added to them, like add_back().

Tensor put_by_index(const Tensor& g, c10::SymIntArrayRef sizes, const c10::IValue& indices) {
  const auto places = indices_of(indices);
  Tensor zeros = g.new_zeros_symint(sizes);
  const bool in_place = may_write({g}) && std::ranges::all_of(places, [](const auto& place) {
                          const std::optional<Tensor> tensor = place;
                          return !tensor || may_write({*tensor});
                        });
  return in_place ? at::index_put_(zeros, places, g, /*accumulate=*/true)
                  : at::index_put(zeros, places, g, /*accumulate=*/true);
}

Tensor add_rows(const Tensor& g, c10::SymIntArrayRef sizes, int64_t dim, const Tensor& indices) {
  Tensor zeros = g.new_zeros_symint(sizes);
  return may_write({g, indices}) ? zeros.index_add_(dim, indices, g)
                                 : zeros.index_add(dim, indices, g);
}

Tensor put(const Tensor& g, c10::SymIntArrayRef sizes, const Tensor& places) {
  Tensor zeros = g.new_zeros_symint(sizes);
  return may_write({g, places}) ? zeros.put_(places, g, /*accumulate=*/true)
                                : zeros.put(places, g, /*accumulate=*/true);
}

} // namespace

void add_indexing(Table& rules) {
  LINEAR("take", put(g, c.sizes_of(0), c[1])).gathers();
  LINEAR("masked_select", put_by_mask(g, c.sizes_of(0), c[1])).gathers();
  LINEAR("index.Tensor", put_by_index(g, c.sizes_of(0), c.arg(1))).gathers();
  LINEAR("_unsafe_index.Tensor", put_by_index(g, c.sizes_of(0), c.arg(1))).gathers();
  LINEAR("index_select", add_rows(g, c.sizes_of(0), c.dim(1), c[2])).gathers();
  LINEAR("gather", add_back(g, c.sizes_of(0), c.dim(1), c[2])).gathers();
  LINEAR(
      "embedding",
      at::embedding_backward_symint(g, c[1], c.sizes_of(0)[0], c.size(2), c.flag(3), c.flag(4)))
      .gathers();
  LINEAR("embedding_dense_backward", embedding_of_gradient(g, c[1], c.integer(3), c.flag(4)));
  for (const char* name : {"index_put", "_unsafe_index_put"}) {
    rules[name].jointly_linear_in(0, 2).vjp(
        VJP(0, c.flag(3) ? g : put_zeros(g, indices_of(c.arg(1)))),
        VJP(2, at::index(g, indices_of(c.arg(1)))));
  }
  rules["index_add"].jointly_linear_in(0, 3).vjp(
      VJP(0, g), VJP(3, times(g.index_select(c.dim(1), c[2]), c.scalar(4).conj())));
  rules["index_copy"].jointly_linear_in(0, 3).vjp(
      VJP(0, g.index_fill(c.dim(1), c[2], 0)), VJP(3, g.index_select(c.dim(1), c[2])));
  rules["index_fill.int_Tensor"].jointly_linear_in(0, 3).vjp(
      VJP(0, g.index_fill(c.dim(1), c[2], 0)), VJP(3, sum_of_filled(g, c.dim(1), c[2])));
  rules["scatter.src"].jointly_linear_in(0, 3).vjp(
      VJP(0, g.scatter(c.dim(1), c[2], 0)),
      VJP(3, in_corner(g.gather(c.dim(1), c[2]), c.sizes_of(3))));
  rules["scatter_add"].jointly_linear_in(0, 3).vjp(
      VJP(0, g), VJP(3, in_corner(g.gather(c.dim(1), c[2]), c.sizes_of(3))));
  rules["masked_scatter"].jointly_linear_in(0, 2).vjp(
      VJP(0, g.masked_fill(c[1], 0)),
      VJP(2, at::masked_scatter_backward_symint(g, c[1], c.sizes_of(2))));
  rules["put"].jointly_linear_in(0, 2).vjp(
      VJP(0, c.flag(3) ? g : put_zeros(g, c[1])),
      VJP(2, g.take(c[1]).reshape_symint(c.sizes_of(2))));
  rules["index_fill.int_Scalar"]
      .jvp(TANGENT(0, with_tangent_and_zero(t, c, 3)))
      .vjp(VJP(0, g.index_fill(c.dim(1), c[2], 0)))
      .piecewise_linear();
  rules["scatter.value"]
      .jvp(TANGENT(0, with_tangent_and_zero(t, c, 3)))
      .vjp(VJP(0, g.scatter(c.dim(1), c[2], 0)))
      .piecewise_linear();
}

} // namespace torchlayers
