// scatter_reduce and index_reduce(x, dim, index, source, reduce, include_self) reduce all elements
// that are written to one place. segment_reduce reduces adjacent elements.
#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

// The destination of each element of the source, or of the corner of it that the index covers.
class Destinations {
 public:
  explicit Destinations(const Operands& call)
      : dim_(call.dim(1)), index_(call[2]), sizes_(call[0].sym_sizes()) {
    const Tensor& source = call[3];
    if (call.op().name() == "aten::index_reduce" && source.dim() > 0) { // one index per slice
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
    return add_back(values, sizes_, dim_, index_);
  }
  Tensor read(const Tensor& places) const {
    return places.gather(dim_, index_);
  }
  Tensor without_written(const Tensor& places) const {
    return places.scatter(dim_, index_, 0);
  }

 private:
  int64_t dim_;
  Tensor index_;
  c10::SymIntArrayRef sizes_;
};

// The derivatives of the results by the element of x at their place, and by the elements of the
// source; undefined means ones.
struct Slopes {
  Tensor by_x;
  Tensor by_source;
  bool is_x_written_over = false; // x counts only where nothing is written
};

Tensor scaled(const Tensor& values, const Tensor& slopes) {
  return slopes.defined() ? values * slopes : values;
}

// Scaled by the derivatives by x's elements.
Tensor scaled_by_x(const Tensor& values, const Slopes& slopes, const Destinations& places) {
  return slopes.is_x_written_over ? places.without_written(values) : scaled(values, slopes.by_x);
}

// `counts_x` is true where x takes part in the reduction; undefined means everywhere.

Slopes of_product(
    const Destinations& places,
    const Operands& call,
    const Tensor& source,
    const Tensor& counts_x) {
  const Tensor factor = counts_x.defined() ? at::where(counts_x, call[0], 1) : call[0];
  const auto without_zeros = [](const Tensor& values) {
    return values.masked_fill(values == 0, 1);
  };
  const Tensor product =
      call.with({{0, without_zeros(factor)}, {3, without_zeros(call[3])}, {5, true}});
  const Tensor zeros = (factor == 0) + places.sum((source == 0).to(source.scalar_type()));
  const Tensor of_others = at::where(zeros == 0, product, 0); // of all but a nonzero one
  const Tensor of_rest = at::where(zeros == 1, product, 0);   // of all but the only zero
  const Tensor by_x = at::where(factor == 0, of_rest, of_others / without_zeros(factor));
  return {
      counts_x.defined() ? at::where(counts_x, by_x, 0) : by_x,
      at::where(source == 0, places.read(of_rest), places.read(of_others) / without_zeros(source))};
}

Slopes of_extreme(
    const Destinations& places,
    const Tensor& x,
    const Tensor& source,
    const Tensor& counts_x,
    const Tensor& y) {
  const Tensor is_y = x == y;
  const Tensor is_x = (counts_x.defined() ? is_y.logical_and(counts_x) : is_y).to(x.scalar_type());
  const Tensor is_source = (source == places.read(y)).to(x.scalar_type());
  const Tensor count = is_x + places.sum(is_source); // several of them share
  return {is_x / count, is_source / places.read(count)};
}

Slopes slopes_of(const Destinations& places, const Operands& call, const Tensor& y) {
  const auto reduce = call.arg(4).toStringView();
  const Tensor& x = call[0];
  const Tensor source = places.corner(call[3]);
  const bool includes_x = call.flag(5);
  const auto written = [&] { return places.sum(at::ones_like(source)); };
  if (reduce == "sum") {
    return {Tensor(), Tensor(), !includes_x};
  }
  if (reduce == "mean") {
    const Tensor share = (includes_x ? written() + 1 : written().clamp_min(1)).reciprocal();
    return {share, places.read(share), !includes_x};
  }
  const Tensor counts_x = includes_x ? Tensor() : written() == 0;
  if (reduce == "prod") {
    return of_product(places, call, source, counts_x);
  }
  return of_extreme(places, x, source, counts_x, y);
}

void reduce_at_index(JvpCall& call) {
  call.run();
  const Destinations places(call);
  const Slopes slopes = slopes_of(places, call, call.result());
  Tensor sum;
  if (call.has_tangent(0)) {
    sum = scaled_by_x(call.tangent(0), slopes, places);
  }
  if (call.has_tangent(3)) {
    sum = sum_of({sum, places.sum(scaled(places.corner(call.tangent(3)), slopes.by_source))});
  }
  call.set_tangent(0, sum);
}

void reduced_at_index_vjp(VjpCall& call) {
  const Tensor& g = call.cotangents()[0];
  const Destinations places(call);
  const Slopes slopes = slopes_of(places, call, call.result());
  if (call.wants(0)) {
    call.give(0, scaled_by_x(g, slopes, places));
  }
  if (call.wants(3)) {
    call.give(3, places.whole(scaled(places.read(g), slopes.by_source), call.sizes_of(3)));
  }
}

// segment_reduce(x, reduce, *, lengths, indices, offsets, axis, unsafe, initial). Lengths and
// offsets may have x's dimensions before the axis.
class Segments {
 public:
  explicit Segments(const Operands& call)
      : sizes_(call[0].sym_sizes()), axis_(at::maybe_wrap_dim(call.integer(5), call[0].dim())) {
    const Tensor& lengths = call[2];
    const Tensor& offsets = call[4];
    const bool has_lengths = lengths.defined();
    count_ = has_lengths ? lengths.sym_size(-1) : offsets.sym_size(-1) - 1;
    const Tensor ends = has_lengths ? lengths.cumsum(-1) : offsets.narrow_symint(-1, 1, count_);
    c10::SymDimVector sizes(ends.sym_sizes());
    sizes.back() = sizes_[axis_];
    const Tensor places = at::arange(sizes_[axis_], ends.options()).expand_symint(sizes);
    index_ = at::searchsorted(ends, places.contiguous(), /*out_int32=*/false, /*right=*/true);
    if (!has_lengths) { // elements before the first segment go to the place after the last
      index_ = at::where(places < offsets.narrow(-1, 0, 1), at::Scalar(count_), index_);
    }
    sizes.resize(sizes_.size(), 1);
    index_ = index_.reshape_symint(sizes).expand_symint(sizes_);
  }

  Tensor sum(const Tensor& values) const {
    return values.new_zeros_symint(reduced(count_ + 1))
        .scatter_add(axis_, index_, values)
        .narrow_symint(axis_, 0, count_);
  }
  Tensor read(const Tensor& segments) const {
    return at::cat({segments, segments.new_zeros_symint(reduced(1))}, axis_).gather(axis_, index_);
  }
  // For each element, the product of the others; without dividing by the element, which may be
  // zero.
  Tensor product_of_others(const Tensor& x) const {
    return product_before(x, index_) *
           product_before(x.flip(axis_), index_.flip(axis_)).flip(axis_);
  }

 private:
  // The product of the elements before each, in its segment. Each step doubles the number of
  // factors.
  Tensor product_before(const Tensor& x, const Tensor& index) const {
    const c10::SymInt length = x.sym_size(axis_);
    const auto first = [&](const Tensor& tensor, const c10::SymInt& count) {
      return tensor.narrow_symint(axis_, 0, count);
    };
    const auto from = [&](const Tensor& tensor, const c10::SymInt& start) {
      return tensor.narrow_symint(axis_, start, length - start);
    };
    const auto is_together = [&](const c10::SymInt& apart) {
      return from(index, apart) == first(index, length - apart);
    };
    if (length == 0) {
      return x;
    }
    const Tensor previous = at::where(is_together(1), first(x, length - 1), 1);
    Tensor products = at::cat({at::ones_like(first(x, 1)), previous}, axis_);
    for (c10::SymInt reach = 1; reach < length; reach = reach * 2) {
      const Tensor later = from(products, reach);
      const Tensor longer = later * first(products, length - reach);
      products =
          at::cat({first(products, reach), at::where(is_together(reach), longer, later)}, axis_);
    }
    return products;
  }
  c10::SymDimVector reduced(const c10::SymInt& count) const {
    c10::SymDimVector sizes(sizes_.begin(), sizes_.end());
    sizes[axis_] = count;
    return sizes;
  }

  c10::SymIntArrayRef sizes_;
  int64_t axis_;
  c10::SymInt count_;
  Tensor index_; // the segment of each element
};

// The derivatives of the segments' results by their elements; undefined means ones.
Tensor slopes_of(const Segments& segments, const Operands& call, const Tensor& y) {
  const auto reduce = call.arg(1).toStringView();
  const Tensor& x = call[0];
  if (reduce == "sum") {
    return {};
  }
  if (reduce == "mean") {
    return segments.read(segments.sum(at::ones_like(x)).clamp_min(1).reciprocal());
  }
  if (reduce == "prod") {
    const Tensor others = segments.product_of_others(x);
    return call.arg(7).isNone() ? others : others * call.scalar(7);
  }
  // If several elements attain the extreme, each gets a share. The initial value may be it, too.
  const Tensor is_extreme = (x == segments.read(y)).logical_or(x.isnan()).to(x.scalar_type());
  return is_extreme / segments.read(segments.sum(is_extreme)).clamp_min(1);
}

void segment_reduce(JvpCall& call) {
  call.run();
  const Segments segments(call);
  const Tensor slopes = slopes_of(segments, call, call.result());
  call.set_tangent(0, segments.sum(scaled(call.tangent(0), slopes)));
}

void segment_reduce_vjp(VjpCall& call) {
  const Tensor& g = call.cotangents()[0];
  if (may_write({g, call[0], call.result()})) { // torch's own operator has no derivative
    call.give(
        0,
        at::_segment_reduce_backward(
            g,
            call.result(),
            call[0],
            call.arg(1).toStringView(),
            call.optional(2),
            call.optional(4),
            at::maybe_wrap_dim(call.integer(5), call[0].dim()),
            call.arg(7).toOptional<at::Scalar>()));
    return;
  }
  const Segments segments(call);
  const Tensor slopes = slopes_of(segments, call, call.result());
  call.give(0, scaled(segments.read(g), slopes));
}

} // namespace

void add_scatter(Table& rules) {
  rules["scatter_reduce.two"]
      .jvp(reduce_at_index)
      .vjp(
          reduced_at_index_vjp,
          {.by = {"self", "src"}, .saves = {"self", "index", "src", "result"}});
  rules["index_reduce"]
      .jvp(reduce_at_index)
      .vjp(
          reduced_at_index_vjp,
          {.by = {"self", "source"}, .saves = {"self", "index", "source", "result"}});
  rules["segment_reduce"]
      .jvp(segment_reduce)
      .vjp(segment_reduce_vjp, {.by = {"data"}, .saves = {"data", "lengths", "offsets", "result"}});
}

} // namespace torchlayers
