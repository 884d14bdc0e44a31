// Norms of vectors, and distances between them.
#include <ATen/WrapDimUtils.h>

#include <cmath>

#include "rules/families.h"
#include "rules/reductions/dims.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

// x|^(order - 1), and zero where x is zero.
Tensor powers_of(const Tensor& size, double order) {
  if (order >= 1) {
    return size.pow(order - 1);
  }
  return nonzero(size, size, is_differentiated_below({size})).pow(order - 1);
}

double order_of(const c10::IValue& order) {
  return order.isNone() ? 2 : order.toScalar().toDouble();
}

// The tangent of (sum |x|^order)^(1/order). At zero it is the subgradient 0. The norm of no
// elements is the constant zero, with derivatives of every order.
Tensor norm_tangent(
    const Tensor& t, const Tensor& x, const Tensor& y, double order, const Dims& over) {
  if (order == 0 || over.count(x) == 0) {
    return {};
  }
  if (order == 1) {
    return over.sum(real_product(x.sgn(), t));
  }
  if (order == 2) {
    const auto product = [](const auto& x, const auto& t) { return x * t; };
    return over_norm(x.is_complex() ? over.sum(real_product(x, t)) : over.sum_of(product, x, t), y);
  }
  if (std::isinf(order)) {
    const Tensor is_extreme = x.abs() == over.kept(y, x.dim());
    const Tensor chosen = at::where(is_extreme, real_product(x.sgn(), t), 0);
    return over.sum(chosen) / over.sum(is_extreme).clamp_min(1); // at least 1: nothing equals nan
  }
  const Tensor sum = over.sum(powers_of(x.abs(), order) * real_product(x.sgn(), t));
  return sum / nonzero(y.pow(order - 1), y, is_differentiated_below({sum, y}));
}

Tensor norm_gradient(
    const Tensor& g, const Tensor& x, const Tensor& y, double order, const Dims& over) {
  if (order == 0) {
    return {};
  }
  const Tensor along = over.kept(g, x.dim());
  if (order == 1) {
    return x.sgn() * along;
  }
  const Tensor norm = over.kept(y, x.dim());
  if (order == 2) {
    return over_norm(x, norm) * along; // for a tiny norm, along / norm would be too large
  }
  if (std::isinf(order)) {
    const Tensor is_extreme = x.abs() == norm;
    const Tensor count = Dims{over.dims, /*keepdim=*/true}.sum(is_extreme).clamp_min(1);
    return at::where(is_extreme, x.sgn() * (along / count), 0);
  }
  const Tensor divisor =
      nonzero(norm.pow(order - 1), norm, is_differentiated_below({x, along, norm}));
  return x.sgn() * powers_of(x.abs(), order) * (along / divisor);
}

// The norms y of differences, along the last dimension, for cdist and pdist. Their derivatives by
// the differences are slopes / y^(order - 1), and zero where y is zero. The same holds for the
// second derivatives of cdist, which is mostly applied to the distances of rows from themselves as
// well, where that is right; those of pdist are nan there, like those of a norm.
class Distances {
 public:
  Distances(Tensor difference, Tensor y, double order, double second_at_zero)
      : difference_(std::move(difference)),
        y_(std::move(y)),
        order_(order),
        second_at_zero_(second_at_zero) {}

  bool is_constant() const {
    return order_ == 0 || difference_.sym_size(-1) == 0;
  }

  // The sum of the slopes times t.
  Tensor sum(const Tensor& t) const {
    return (slopes() * t).sum(-1);
  }
  Tensor over_powers(const Tensor& numerator) const {
    if (is_angular()) {
      return numerator;
    }
    if (second_at_zero_ != 0) {
      // Tests the differences, which are zero where y is: torch's kernel for y's gradient does not
      // accept nan.
      const Tensor size = difference_.abs().sum(-1);
      return numerator /
             nonzero(y_.pow(order_ - 1), size, is_differentiated_below({numerator, y_}));
    }
    return zero_where(y_ == 0, numerator / without_zeros(y_).pow(order_ - 1));
  }

  // The tangent of the backward, slopes times over_powers(g), from those of y and the differences.
  Tensor backward_tangent(const Tensor& g, const Tensor& by_y, const Tensor& by_difference) const {
    if (is_angular()) {
      return {};
    }
    const Tensor weight = over_powers(g);
    Tensor sum;
    if (by_difference.defined()) {
      sum = weight.unsqueeze(-1) * bent(by_difference);
    }
    if (by_y.defined()) {
      const Tensor less = (order_ - 1) * weight * by_y / without_zeros(y_);
      sum = sum_of({sum, -less.unsqueeze(-1) * slopes()});
    }
    return sum.defined() ? of_second_order(sum, y_.unsqueeze(-1)) : sum;
  }
  // The gradients of the backward, where u is its cotangent.
  Tensor backward_by_y(const Tensor& g, const Tensor& u) const {
    return is_angular()
               ? Tensor()
               : of_second_order((1 - order_) * over_powers(g * sum(u)) / without_zeros(y_), y_);
  }
  Tensor backward_by_difference(const Tensor& g, const Tensor& u) const {
    return is_angular() ? Tensor()
                        : of_second_order(over_powers(g).unsqueeze(-1) * bent(u), y_.unsqueeze(-1));
  }

 private:
  // Piecewise linear: the slopes are constant between the edges.
  bool is_angular() const {
    return order_ == 1 || std::isinf(order_);
  }
  static Tensor without_zeros(const Tensor& sizes) {
    return sizes.masked_fill(sizes == 0, 1);
  }
  Tensor of_second_order(Tensor made, const Tensor& y) const {
    return filled_where(y == 0, std::move(made), second_at_zero_);
  }
  Tensor slopes() const {
    if (order_ == 2) {
      return difference_;
    }
    const Tensor direction = difference_.sgn();
    if (order_ == 1) {
      return direction;
    }
    if (std::isinf(order_)) {
      return at::where(difference_.abs() == y_.unsqueeze(-1), direction, 0);
    }
    return direction * without_zeros(difference_.abs()).pow(order_ - 1);
  }
  // The tangent of the slopes.
  Tensor bent(const Tensor& t) const {
    if (order_ == 2) {
      return t;
    }
    const Tensor bend = (order_ - 1) * without_zeros(difference_.abs()).pow(order_ - 2);
    return zero_where(difference_ == 0, bend) * t;
  }

  Tensor difference_;
  Tensor y_;
  double order_;
  double second_at_zero_;
};

// From each row of one matrix to each row of the other; either matrix may be undefined.
Tensor differences(const Tensor& rows, const Tensor& others) {
  return sum_of(
      {rows.defined() ? rows.unsqueeze(-2) : rows,
       others.defined() ? -others.unsqueeze(-3) : others});
}

// _cdist_forward(x1, x2, order, mode)
void cdist(JvpCall& call) {
  call.run();
  const Distances found(
      differences(call[0], call[1]), call.result(), call.number(2), /*second_at_zero=*/0);
  if (!found.is_constant()) {
    const Tensor t = differences(tangent_or_none(call, 0), tangent_or_none(call, 1));
    call.set_tangent(0, found.over_powers(found.sum(t)));
  }
}

// The contribution of the cotangent's own tangent: the operator is linear in the cotangent.
Tensor by_cotangent(const JvpCall& call) {
  return call.has_tangent(0) ? call.with({{0, call.tangent(0).contiguous()}}) : Tensor();
}

// _cdist_backward(g, x1, x2, order, distances): the gradient by x1, summed over all rows of x2.
void cdist_backward(JvpCall& call) {
  call.run();
  const Distances found(
      differences(call[1], call[2]), call[4], call.number(3), /*second_at_zero=*/0);
  if (found.is_constant()) {
    return;
  }
  const Tensor of_pairs = found.backward_tangent(
      call[0],
      tangent_or_none(call, 4),
      differences(tangent_or_none(call, 1), tangent_or_none(call, 2)));
  call.set_tangent(
      0, sum_of({by_cotangent(call), of_pairs.defined() ? of_pairs.sum(-2) : of_pairs}));
}

void cdist_backward_vjp(VjpCall& call) {
  const Distances found(
      differences(call[1], call[2]), call[4], call.number(3), /*second_at_zero=*/0);
  if (found.is_constant()) {
    return;
  }
  const Tensor& g = call[0];
  const Tensor u = call.cotangents()[0].unsqueeze(-2);
  if (call.wants(0)) {
    call.give(0, found.over_powers(found.sum(u)));
  }
  if (call.wants(4)) {
    call.give(4, found.backward_by_y(g, u));
  }
  if (call.wants(1) || call.wants(2)) {
    const Tensor by_pairs = found.backward_by_difference(g, u);
    if (by_pairs.defined()) {
      call.give(1, by_pairs.sum(-2));
      call.give(2, -by_pairs.sum(-3));
    }
  }
}

// The rows of one matrix, each pair once.
struct Pairs {
  Tensor first;
  Tensor second;

  explicit Pairs(const Tensor& x) {
    const int64_t count = x.sym_size(0).guard_int(__FILE__, __LINE__);
    const Tensor both = at::triu_indices(count, count, 1, x.options().dtype(at::kLong));
    first = both.select(0, 0);
    second = both.select(0, 1);
  }

  Tensor differences(const Tensor& x) const {
    return x.defined() ? x.index_select(0, first) - x.index_select(0, second) : x;
  }
  // For each row, the sum over its pairs.
  Tensor sum(const Tensor& of_pairs, const Tensor& x) const {
    return at::zeros_like(x).index_add(0, first, of_pairs).index_add(0, second, -of_pairs);
  }
};

// _pdist_forward(x, order)
void pdist(JvpCall& call) {
  call.run();
  const Pairs pairs(call[0]);
  const Distances found(
      pairs.differences(call[0]), call.result(), call.number(1), /*second_at_zero=*/NAN);
  if (!found.is_constant()) {
    const Tensor t = pairs.differences(call.tangent(0));
    call.set_tangent(0, found.over_powers(found.sum(t)));
  }
}

// _pdist_backward(g, x, order, distances)
void pdist_backward(JvpCall& call) {
  call.run();
  const Pairs pairs(call[1]);
  const Distances found(
      pairs.differences(call[1]), call[3], call.number(2), /*second_at_zero=*/NAN);
  if (found.is_constant()) {
    return;
  }
  const Tensor of_pairs = found.backward_tangent(
      call[0], tangent_or_none(call, 3), pairs.differences(tangent_or_none(call, 1)));
  call.set_tangent(
      0,
      sum_of({by_cotangent(call), of_pairs.defined() ? pairs.sum(of_pairs, call[1]) : of_pairs}));
}

void pdist_backward_vjp(VjpCall& call) {
  const Pairs pairs(call[1]);
  const Distances found(
      pairs.differences(call[1]), call[3], call.number(2), /*second_at_zero=*/NAN);
  if (found.is_constant()) {
    return;
  }
  const Tensor& g = call[0];
  const Tensor u = pairs.differences(call.cotangents()[0]);
  if (call.wants(0)) {
    call.give(0, found.over_powers(found.sum(u)));
  }
  if (call.wants(3)) {
    call.give(3, found.backward_by_y(g, u));
  }
  if (call.wants(1)) {
    const Tensor by_pairs = found.backward_by_difference(g, u);
    if (by_pairs.defined()) {
      call.give(1, pairs.sum(by_pairs, call[1]));
    }
  }
}

// renorm(x, order, dim, largest): slices along a dimension, scaled down to the largest norm where
// theirs is larger. The others have ones for the norm, which may not be differentiable at theirs.
class Limited {
 public:
  Limited(const Tensor& x, const Operands& call) : x_(x), order_(order_of(call.arg(1))) {
    constexpr double kEpsilon = 1e-7; // torch's
    const int64_t kept = at::maybe_wrap_dim(call.dim(2), x.dim());
    for (int64_t dim = 0; dim < x.dim(); ++dim) {
      if (dim != kept) {
        over_.dims.push_back(dim);
      }
    }
    over_.keepdim = true;
    const double largest = call.scalar(3).toDouble();
    const auto norm = [&](const Tensor& of) {
      return at::linalg_vector_norm(of, order_, over_.dims, /*keepdim=*/true);
    };
    const Tensor is_long = norm(x.detach()) > largest;
    long_ = at::where(is_long, x, 1);
    norm_ = norm(long_);
    const Tensor scale = largest / (norm_ + kEpsilon);
    factor_ = at::where(is_long, scale, 1);
    slope_ = at::where(is_long, -scale / (norm_ + kEpsilon), 0);
  }

  Tensor tangent(const Tensor& t) const {
    return t * factor_ + x_ * (slope_ * norm_tangent(t, long_, norm_, order_, over_));
  }
  Tensor gradient(const Tensor& g) const {
    const Tensor by_norm = slope_ * over_.sum(real_product(x_, g));
    return g * factor_ + norm_gradient(by_norm, long_, norm_, order_, over_);
  }

 private:
  Tensor x_;
  double order_;
  Dims over_;
  Tensor long_;
  Tensor norm_;
  Tensor factor_;
  Tensor slope_;
};

} // namespace

void add_distances(Table& rules) {
  for (const char* name :
       {"linalg_vector_norm", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype"}) {
    rules[name]
        .jvp(TANGENT(0, norm_tangent(t, x, y, order_of(c.arg(1)), Dims{c.dims(2), c.flag(3)})))
        .vjp(VJP(0, norm_gradient(g, x, y, order_of(c.arg(1)), Dims{c.dims(2), c.flag(3)})))
        .along(Along::Reduces);
  }
  for (const char* name : {"norm.Scalar", "norm.ScalarOpt_dtype"}) {
    rules[name]
        .jvp(TANGENT(0, norm_tangent(t, x, y, order_of(c.arg(1)), Dims{})))
        .vjp(VJP(0, norm_gradient(g, x, y, order_of(c.arg(1)), Dims{})))
        .along(Along::Reduces);
  }
  rules["renorm"]
      .jvp(TANGENT(0, x.sym_numel() == 0 ? t : Limited(x, c).tangent(t)))
      .vjp(VJP(0, x.sym_numel() == 0 ? g : Limited(x, c).gradient(g)));
  rules["dist"]
      .jvp(
          TANGENT(0, norm_tangent(t, c[0] - c[1], y, order_of(c.arg(2)), Dims{{}, false})),
          TANGENT(1, norm_tangent(-t, c[0] - c[1], y, order_of(c.arg(2)), Dims{{}, false})))
      .vjp(
          VJP(0, norm_gradient(g, c[0] - c[1], y, order_of(c.arg(2)), Dims{{}, false})),
          VJP(1, norm_gradient(-g, c[0] - c[1], y, order_of(c.arg(2)), Dims{{}, false})))
      .along(Along::Reduces);
  rules["_cdist_forward"]
      .jvp(cdist)
      .vjp(
          VJP(0, at::_cdist_backward(g.contiguous(), c[0], c[1], c.number(2), y)),
          VJP(1,
              at::_cdist_backward(
                  g.mT().contiguous(), c[1], c[0], c.number(2), y.mT().contiguous())))
      .pairs(0, 1, "...id,...jd->...ij");
  rules["_euclidean_dist"].pairs(0, 1, "...id,...jd->...ij");
  rules["_cdist_backward"]
      .jvp(cdist_backward)
      .vjp(
          cdist_backward_vjp,
          {.by = {"grad", "x1", "x2", "cdist"}, .saves = {"grad", "x1", "x2", "cdist"}});
  rules["_pdist_forward"].jvp(pdist).vjp(VJP(0, at::_pdist_backward(g, x, c.number(1), y)));
  rules["_pdist_backward"]
      .jvp(pdist_backward)
      .vjp(
          pdist_backward_vjp,
          {.by = {"grad", "self", "pdist"}, .saves = {"grad", "self", "pdist"}});
}

} // namespace torchlayers
