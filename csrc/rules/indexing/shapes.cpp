// Operators that move elements around, and join tensors.
#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <limits>

#include "core/record_stream.h"
#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

// Linear jointly in all the tensors of the list that comes first.
void joined(JvpCall& call) {
  call.run();
  const auto tensors = call.arg(0).toTensorVector();
  const auto tangents = call.tangents(0);
  std::vector<Tensor> filled;
  for (size_t i = 0; i < tensors.size(); ++i) {
    filled.push_back(tangents[i].defined() ? tangents[i] : at::zeros_like(tensors[i]));
  }
  call.set_tangent(0, call.with({{0, filled}}));
}

// A tangent is used on the same streams as its primal. NOTE [Streams].
void recorded_on_stream(JvpCall& call) {
  call.run();
  record_use(call.tangent(0), call.arg(1).toStream());
}

void split(JvpCall& call) {
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

std::vector<c10::SymInt> negated(std::vector<c10::SymInt> shifts) {
  for (c10::SymInt& shift : shifts) {
    shift = -shift;
  }
  return shifts;
}

// The sum of the copies, which are adjacent.
Tensor unrepeated(
    const Tensor& g, c10::SymIntArrayRef sizes, const std::vector<c10::SymInt>& repeats) {
  std::vector<c10::SymInt> apart;
  std::vector<int64_t> copies;
  const size_t added = repeats.size() - sizes.size();
  for (size_t i = 0; i < repeats.size(); ++i) {
    copies.push_back(static_cast<int64_t>(apart.size()));
    apart.push_back(repeats[i]);
    if (i >= added) {
      apart.push_back(sizes[i - added]);
    }
  }
  return copies.empty() ? g : g.reshape_symint(apart).sum(copies);
}

Tensor unnarrowed(
    const Tensor& g,
    c10::SymIntArrayRef sizes,
    int64_t dim,
    c10::SymInt start,
    const c10::SymInt& length) {
  start += start < 0 ? sizes[at::maybe_wrap_dim(dim, static_cast<int64_t>(sizes.size()))] : 0;
  return at::slice_backward_symint(g, sizes, dim, start, start + length, 1);
}

using Bound = std::optional<c10::SymInt>;

Bound bound(const c10::IValue& value) {
  return value.isNone() ? Bound() : value.toSymInt();
}

// On the real view of a complex gradient: plain autograd, which may record the gradient, has no
// derivative of scatters for complex numbers.
template <class Compute>
Tensor by_real_view(const Tensor& g, const Compute& compute) {
  return g.is_complex() ? at::view_as_complex(compute(at::view_as_real(g.resolve_conj())))
                        : compute(g);
}

// A dimension that the real view has too.
int64_t dim_in_real_view(const Tensor& g, int64_t dim) {
  return g.is_complex() ? at::maybe_wrap_dim(dim, g.dim()) : dim;
}

// The gradient outside the slice that is overwritten.
Tensor outside_slice(
    const Tensor& g, int64_t dim, const Bound& start, const Bound& end, const c10::SymInt& step) {
  dim = dim_in_real_view(g, dim);
  return by_real_view(g, [&](const Tensor& g) {
    const Tensor slice = g.slice_symint(dim, start, end, step);
    return g.slice_scatter_symint(at::zeros_like(slice), dim, start, end, step);
  });
}

// With a last dimension of stride 1, which contiguous() does not give a tensor without elements.
Tensor with_pairs_together(const Tensor& g) {
  const Tensor dense = g.contiguous();
  const auto strides = dense.sym_strides();
  const auto is_even = [](const c10::SymInt& number) { return number % 2 == 0; };
  const bool are_together = strides.back() == 1 && is_even(dense.sym_storage_offset()) &&
                            std::all_of(strides.begin(), strides.end() - 1, is_even);
  return are_together ? dense : dense.clone(at::MemoryFormat::Contiguous);
}

Tensor outside_row(const Tensor& g, int64_t dim, const c10::SymInt& row) {
  dim = dim_in_real_view(g, dim);
  return by_real_view(g, [&](const Tensor& g) {
    return g.select_scatter_symint(at::zeros_like(g.select_symint(dim, row)), dim, row);
  });
}

Tensor outside_diagonal(const Tensor& g, int64_t offset, int64_t dim1, int64_t dim2) {
  dim1 = dim_in_real_view(g, dim1);
  dim2 = dim_in_real_view(g, dim2);
  return by_real_view(g, [&](const Tensor& g) {
    const Tensor zeros = at::zeros_like(g.diagonal(offset, dim1, dim2));
    return g.diagonal_scatter(zeros, offset, dim1, dim2);
  });
}

void cut_apart(VjpCall& call) {
  const Tensor& g = call.cotangents()[0];
  const int64_t dim = at::maybe_wrap_dim(call.dim(1), g.dim());
  c10::SymInt start = 0;
  for (const Target& target : call.targets()) {
    if (target.sizes.size() == 1 && target.sizes[0] == 0) {
      call.give(0, g.new_zeros({0}), target.member); // cat skips these
      continue;
    }
    const c10::SymInt& length = target.sizes[dim];
    if (call.wants(0, target.member)) {
      call.give(0, g.narrow_symint(dim, start, length), target.member);
    }
    start += length;
  }
}

void unstacked(VjpCall& call) {
  const Tensor& g = call.cotangents()[0];
  for (const Target& target : call.targets()) {
    if (call.wants(0, target.member)) {
      call.give(0, g.select(call.dim(1), target.member), target.member);
    }
  }
}

// The gradients of block_diag, where a vector is a row.
void take_blocks(VjpCall& call) {
  const Tensor& g = call.cotangents()[0];
  c10::SymInt row = 0;
  c10::SymInt column = 0;
  for (const Target& target : call.targets()) {
    const size_t rank = target.sizes.size();
    const c10::SymInt height = rank < 2 ? c10::SymInt(1) : target.sizes[0];
    const c10::SymInt width = rank < 1 ? c10::SymInt(1) : target.sizes[rank - 1];
    if (call.wants(0, target.member)) {
      const Tensor block = g.narrow_symint(0, row, height).narrow_symint(1, column, width);
      call.give(0, block.reshape_symint(target.sizes), target.member);
    }
    row += height;
    column += width;
  }
}

// Joins the gradients of parts of the argument, with zeros for parts without one.
void join_parts(VjpCall& call) {
  const auto sizes = call.sizes_of(0);
  const int64_t dim = at::maybe_wrap_dim(call.dim(2), static_cast<int64_t>(sizes.size()));
  const c10::IValue& lengths = call.arg(1);
  const Tensor* any = nullptr;
  for (const Tensor& g : call.cotangents()) {
    any = g.defined() ? &g : any;
  }
  std::vector<Tensor> parts;
  c10::SymInt rest = sizes[dim];
  for (size_t i = 0; i < call.cotangents().size(); ++i) {
    const c10::SymInt length =
        lengths.isList() ? lengths.toListRef()[i].toSymInt() : std::min(lengths.toSymInt(), rest);
    rest = rest - length;
    if (call.cotangents()[i].defined()) {
      parts.push_back(call.cotangents()[i]);
      continue;
    }
    c10::SymDimVector part(sizes.begin(), sizes.end());
    part[dim] = length;
    parts.push_back(any->new_zeros_symint(part));
  }
  call.give(0, at::cat(parts, dim));
}

void stack_parts(VjpCall& call) {
  const Tensor* any = nullptr;
  for (const Tensor& g : call.cotangents()) {
    any = g.defined() ? &g : any;
  }
  std::vector<Tensor> parts;
  for (const Tensor& g : call.cotangents()) {
    parts.push_back(g.defined() ? g : at::zeros_like(*any));
  }
  call.give(0, at::stack(parts, call.dim(1)));
}

int64_t reach(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  int64_t reach = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    reach += std::max<int64_t>(sizes[i] - 1, 0) * strides[i];
  }
  return reach;
}

// The place that as_strided_scatter writes to, relative to the first element of x. An x that shows
// elements of its memory more than once is copied first, like any other, and gets new strides.
struct Part {
  at::DimVector x_strides;
  int64_t offset;
  int64_t before; // elements of memory that it reaches before x
  int64_t extent; // of memory that covers both x and it
  bool is_inside; // it lies between x's first element and its last
  bool is_whole;  // x covers that memory completely

  Part(
      const Tensor& x,
      const std::vector<int64_t>& sizes,
      const std::vector<int64_t>& strides,
      const c10::IValue& at) {
    const bool overlaps = at::has_internal_overlap(x) == at::MemOverlap::Yes;
    x_strides = overlaps ? at::empty_like(x).strides() : x.strides();
    offset = at.isNone() ? 0 : at.toInt() - (overlaps ? 0 : x.storage_offset());
    before = std::max<int64_t>(-offset, 0);
    const int64_t own = reach(x.sizes(), x_strides);
    const int64_t last = offset + reach(sizes, strides);
    extent = before + std::max(own, last) + 1;
    is_inside = offset >= 0 && last <= own;
    is_whole = own + 1 == x.numel();
  }
};

// A cotangent with x's strides. Memory between x's elements is never read.
Tensor with_strides_of(const Part& part, const Tensor& x, const Tensor& g) {
  return g.new_empty_strided(x.sizes(), part.x_strides).copy_(g);
}

Tensor part_strided(
    const Tensor& g,
    const Tensor& x,
    const std::vector<int64_t>& sizes,
    const std::vector<int64_t>& strides,
    const c10::IValue& at) {
  const Part part(x, sizes, strides, at);
  if (part.is_inside && part.is_whole) {
    return with_strides_of(part, x, g).as_strided(sizes, strides, part.offset);
  }
  const Tensor memory = g.new_zeros({part.extent});
  memory.as_strided(x.sizes(), part.x_strides, part.before).copy_(g);
  return memory.as_strided(sizes, strides, part.before + part.offset);
}

// If the overwritten part is inside x's memory, this is torch's own formula. Where the gradient
// must not be written to, the part outside is determined on a constant mask, which is not
// differentiated.
Tensor outside_strided(
    const Tensor& g,
    const Tensor& x,
    const std::vector<int64_t>& sizes,
    const std::vector<int64_t>& strides,
    const c10::IValue& offset) {
  const Part part(x, sizes, strides, offset);
  if (part.is_inside && may_write({g})) {
    const Tensor outside = with_strides_of(part, x, g);
    outside.as_strided(sizes, strides, outside.storage_offset() + part.offset).zero_();
    return outside;
  }
  const Tensor is_outside = at::ones({part.extent}, g.options().dtype(at::kBool));
  is_outside.as_strided(sizes, strides, part.before + part.offset).zero_();
  return at::where(is_outside.as_strided(x.sizes(), part.x_strides, part.before), g, 0);
}

} // namespace

void add_shapes(Table& rules) {
  LINEAR("roll", g.roll_symint(negated(c.sizes(1)), c.dims(2))).gathers();
  LINEAR("rot90", g.rot90(-c.integer(1), c.dims(2))).gathers();
  LINEAR("repeat", unrepeated(g, c.sizes_of(0), c.sizes(1))).gathers();
  LINEAR("diag_embed", g.diagonal(c.integer(1), c.dim(2), c.dim(3))).gathers();
  LINEAR("unfold_backward", g.unfold(c.dim(2), c.integer(3), c.integer(4))).scatters();
  LINEAR("diagonal_backward", g.diagonal(c.integer(2), c.dim(3), c.dim(4))).gathers();
  LINEAR("narrow_copy", unnarrowed(g, c.sizes_of(0), c.dim(1), c.size(2), c.size(3))).gathers();
  LINEAR("flip", g.flip(c.dims(1))).gathers();
  LINEAR("tril", g.tril_symint(c.size(1))).gathers();
  LINEAR("triu", g.triu_symint(c.size(1))).gathers();
  LINEAR("slice_backward", g.slice_symint(c.dim(2), c.size(3), c.size(4), c.size(5))).gathers();
  LINEAR("select_backward", g.select_symint(c.dim(2), c.size(3))).gathers();
  LINEAR("_unsafe_view", g.reshape_symint(c.sizes_of(0))).gathers();
  LINEAR("_reshape_copy", g.reshape_symint(c.sizes_of(0))).gathers();
  LINEAR("view", g.reshape_symint(c.sizes_of(0))).gathers();
  LINEAR("_reshape_alias", g.reshape_symint(c.sizes_of(0))).gathers();
  LINEAR("expand", g).gathers();
  // The sum over dimensions that were broadcast follows by itself.
  LINEAR("transpose.int", g.transpose(c.dim(1), c.dim(2))).gathers();
  LINEAR("t", g.t()).gathers();
  LINEAR("permute", g.permute(inverted(c.dims(1)))).gathers();
  LINEAR("unsqueeze", g.squeeze(c.dim(1))).gathers();
  LINEAR("squeeze", g.reshape_symint(c.sizes_of(0))).gathers();
  LINEAR("squeeze.dim", g.reshape_symint(c.sizes_of(0))).gathers();
  LINEAR("squeeze.dims", g.reshape_symint(c.sizes_of(0))).gathers();
  LINEAR("select.int", at::select_backward_symint(g, c.sizes_of(0), c.dim(1), c.size(2))).gathers();
  LINEAR(
      "slice.Tensor",
      at::slice_backward_symint(
          g, c.sizes_of(0), c.dim(1), or_else(c.arg(2), 0), or_else(c.arg(3), kEnd), c.size(4)))
      .gathers();
  LINEAR(
      "diagonal", at::diagonal_backward_symint(g, c.sizes_of(0), c.integer(1), c.dim(2), c.dim(3)))
      .gathers();
  LINEAR(
      "unfold", at::unfold_backward_symint(g, c.sizes_of(0), c.dim(1), c.integer(2), c.integer(3)))
      .gathers();
  LINEAR("view_as_real", at::view_as_complex(with_pairs_together(g)));
  LINEAR("view_as_complex", at::view_as_real(g.resolve_conj()));
  rules["copy"]
      .terms(TERM(0, Tensor()), TERM(1, t.to(x.scalar_type())))
      .piecewise_linear()
      .gathers();
  rules["fill.Tensor"].terms(TERM(1, t)).piecewise_linear();
  for (const char* name : {"lift", "lift_fresh"}) {
    rules[name].gathers();
  }
  rules["record_stream"].jvp(recorded_on_stream);
  rules["cat"].jvp(joined).vjp(cut_apart, {.by = {"tensors"}}).linear().gathers();
  rules["stack"].jvp(joined).vjp(unstacked, {.by = {"tensors"}}).linear().gathers();
  rules["block_diag"].jvp(joined).vjp(take_blocks, {.by = {"tensors"}}).linear().gathers();
  for (const char* name :
       {"split.Tensor", "split_with_sizes", "unsafe_split.Tensor", "unsafe_split_with_sizes"}) {
    rules[name].jvp(split).vjp(join_parts, {.by = {"self"}}).linear().gathers();
  }
  rules["unbind.int"].jvp(split).vjp(stack_parts, {.by = {"self"}}).linear().gathers();
  rules["slice_scatter"]
      .jointly_linear_in(0, 1)
      .vjp(
          VJP(0, outside_slice(g, c.dim(2), bound(c.arg(3)), bound(c.arg(4)), c.size(5))),
          VJP(1, g.slice_symint(c.dim(2), bound(c.arg(3)), bound(c.arg(4)), c.size(5))))
      .gathers();
  rules["select_scatter"]
      .jointly_linear_in(0, 1)
      .vjp(
          VJP(0, outside_row(g, c.dim(2), c.size(3))), VJP(1, g.select_symint(c.dim(2), c.size(3))))
      .gathers();
  rules["diagonal_scatter"]
      .jointly_linear_in(0, 1)
      .vjp(
          VJP(0, outside_diagonal(g, c.integer(2), c.dim(3), c.dim(4))),
          VJP(1, g.diagonal(c.integer(2), c.dim(3), c.dim(4))))
      .gathers();
  rules["as_strided_scatter"]
      .vjp(
          VJP(0, outside_strided(g, x, c.integers(2), c.integers(3), c.arg(4))),
          VJP(1, part_strided(g, x, c.integers(2), c.integers(3), c.arg(4))))
      .linear()
      .gathers();
}

} // namespace torchlayers
