// scatter_reduce and index_reduce(x, dim, index, source, reduce, include_self): what is written to
// one place is reduced to one element.
#include "families.h"
#include "forms.h"

namespace torchlayers {
namespace {

using at::Tensor;

// Where each element of the source goes, or of that corner of it which the index covers.
class Places {
 public:
  explicit Places(const Operands& call)
      : dim_(call.integer(1)), index_(call[2]), sizes_(call[0].sym_sizes()) {
    const Tensor& source = call[3];
    if (call.op().name() == "aten::index_reduce" && source.dim() > 0) { // a number for each slice
      c10::SymDimVector along(source.dim(), 1);
      along[at::maybe_wrap_dim(dim_, source.dim())] = index_.sym_numel();
      index_ = index_.reshape_symint(along).expand_symint(source.sym_sizes());
    }
  }

  Tensor corner(Tensor source) const {
    if (source.dim() == 0) {
      return source.reshape_symint(index_.sym_sizes());
    }
    for (int64_t dim = 0; dim < index_.dim() && source.sym_sizes() != index_.sym_sizes(); ++dim) {
      source = source.narrow_symint(dim, 0, index_.sym_size(dim));
    }
    return source;
  }
  Tensor whole(const Tensor& corner, c10::SymIntArrayRef sizes) const {
    if (sizes.empty()) {
      return corner.reshape({});
    }
    if (corner.sym_sizes() == sizes) {
      return corner;
    }
    std::vector<c10::SymInt> padding;
    for (int64_t dim = corner.dim() - 1; dim >= 0; --dim) {
      padding.emplace_back(0);
      padding.push_back(sizes[dim] - corner.sym_size(dim));
    }
    return at::constant_pad_nd_symint(corner, padding, 0);
  }
  Tensor sum(const Tensor& values) const {
    return values.new_zeros_symint(sizes_).scatter_add(dim_, index_, values);
  }
  Tensor read(const Tensor& places) const {
    return places.gather(dim_, index_);
  }

 private:
  int64_t dim_;
  Tensor index_;
  c10::SymIntArrayRef sizes_;
};

// The derivatives of the results by the element of x at their place, and by the source's elements.
struct Slopes {
  Tensor by_x;
  Tensor by_source;
};

// `counts_x` says where x is one of what is reduced; undefined: everywhere.

Slopes of_product(
    const Places& places, const Operands& call, const Tensor& source, const Tensor& counts_x) {
  const Tensor factor = counts_x.defined() ? at::where(counts_x, call[0], 1) : call[0];
  const auto without_zeros = [](const Tensor& values) {
    return values.masked_fill(values == 0, 1);
  };
  const Tensor product =
      call.with({{0, without_zeros(factor)}, {3, without_zeros(call[3])}, {5, true}});
  const Tensor zeros = (factor == 0) + places.sum((source == 0).to(source.scalar_type()));
  const Tensor of_others = at::where(zeros == 0, product, 0); // than one that is not zero
  const Tensor of_rest = at::where(zeros == 1, product, 0);   // than the only zero
  const Tensor by_x = at::where(factor == 0, of_rest, of_others / without_zeros(factor));
  return {
      counts_x.defined() ? at::where(counts_x, by_x, 0) : by_x,
      at::where(source == 0, places.read(of_rest), places.read(of_others) / without_zeros(source))};
}

Slopes of_extreme(
    const Places& places,
    const Tensor& x,
    const Tensor& source,
    const Tensor& counts_x,
    const Tensor& y) {
  const Tensor is_y = x == y;
  const Tensor is_x = (counts_x.defined() ? is_y.logical_and(counts_x) : is_y).to(x.scalar_type());
  const Tensor is_source = (source == places.read(y)).to(x.scalar_type());
  const Tensor count = is_x + places.sum(is_source); // where several are, each has a share
  return {is_x / count, is_source / places.read(count)};
}

Slopes slopes_of(const Places& places, const Operands& call, const Tensor& y) {
  const auto reduce = call.arg(4).toStringView();
  const Tensor& x = call[0];
  const Tensor source = places.corner(call[3]);
  const bool includes_x = call.flag(5);
  const auto written = [&] { return places.sum(at::ones_like(source)); };
  const Tensor counts_x = includes_x ? Tensor() : written() == 0;
  if (reduce == "sum") {
    return {includes_x ? at::ones_like(x) : counts_x.to(x.scalar_type()), at::ones_like(source)};
  }
  if (reduce == "mean") {
    const Tensor share = 1 / (includes_x ? written() + 1 : written().clamp_min(1));
    return {includes_x ? share : counts_x * share, places.read(share)};
  }
  if (reduce == "prod") {
    return of_product(places, call, source, counts_x);
  }
  return of_extreme(places, x, source, counts_x, y);
}

void reduced(Call& call) {
  call.run();
  const Places places(call);
  const Slopes slopes = slopes_of(places, call, call.result());
  Tensor sum;
  if (call.has_tangent(0)) {
    sum = slopes.by_x * call.tangent(0);
  }
  if (call.has_tangent(3)) {
    sum = sum_of({sum, places.sum(slopes.by_source * places.corner(call.tangent(3)))});
  }
  call.set_tangent(0, sum);
}

void pull_reduced(Pullback& call) {
  const Tensor& g = call.cotangents()[0];
  const Places places(call);
  const Slopes slopes = slopes_of(places, call, call.result());
  if (call.wants(0)) {
    call.give(0, g * slopes.by_x);
  }
  if (call.wants(3)) {
    call.give(3, places.whole(places.read(g) * slopes.by_source, call.sizes_of(3)));
  }
}

} // namespace

void add_scattered(Table& rules) {
  for (const char* name : {"scatter_reduce.two", "index_reduce"}) {
    WRITTEN(name, reduced);
    rules.add_pull(name, {0, 3}, {0}, Reads{0b1101, 0b1}, pull_reduced);
  }
}

} // namespace torchlayers
