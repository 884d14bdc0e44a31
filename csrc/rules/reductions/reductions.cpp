// Sums, means and variances.
#include <cmath>

#include "rules/families.h"
#include "rules/reductions/dims.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

Tensor itself_summed(const Tensor& t) {
  return sum_if_in_one_pass([](const auto& t) { return t; }, t);
}

// Undefined where the operator has to compute it.
Tensor mean_of_all(const Tensor& t) {
  const auto count = t.sym_numel().maybe_as_int();
  return count ? sum_if_in_one_pass([&](const auto& t) { return t / *count; }, t) : Tensor();
}

// A sum or mean of t over all or some dimensions; `of_all` computes it if it is over all.
Tensor reduced(
    const Tensor& t,
    const Operands& call,
    const Dims& over,
    const c10::IValue& dtype,
    Tensor (*of_all)(const Tensor&)) {
  const Tensor result = dtype.isNone() && over.takes_all(t) ? of_all(t) : Tensor();
  return result.defined() ? result : on_first(t, call);
}

Tensor mean_to_subtract(const Tensor& x, const Dims& over) {
  const Tensor mean = over.takes_all(x) ? mean_of_all(x) : Tensor();
  return mean.defined() ? mean : x.mean(over.dims, /*keepdim=*/true);
}

// The deviations from the mean add up to zero, so the tangent of the mean cancels.
Tensor variance_tangent(
    const Tensor& t, const Tensor& x, const Dims& over, const c10::IValue& correction) {
  const Tensor mean = mean_to_subtract(x, over);
  const auto product = [](const auto& x, const auto& mean, const auto& t) {
    return (x - mean) * t;
  };
  const Tensor sum =
      x.is_complex() ? over.sum(real_product(x - mean, t)) : over.sum_of(product, x, mean, t);
  const double taken = correction.isNone() ? 1 : correction.toScalar().toDouble();
  if (x.sym_numel() == 0) {
    return sum;
  }
  const c10::SymInt count = over.count(x);
  if (const auto number = count.maybe_as_int()) {
    const double degrees = static_cast<double>(*number) - taken;
    return in_one_pass([&](const auto& sum) { return 2 * sum / degrees; }, sum);
  }
  if (taken == std::floor(taken)) {
    return 2 * sum / (count - static_cast<int64_t>(taken));
  }
  return sum * (2 / (static_cast<double>(count.expect_int()) - taken));
}

Tensor deviation_tangent(const Tensor& variance, const Tensor& deviation) {
  if (is_differentiated_below({variance, deviation})) {
    return variance / (2 * nonzero(deviation, deviation, true));
  }
  return in_one_pass(
      [](const auto& variance, const auto& deviation) {
        return variance / where(deviation == 0, INFINITY, 2 * deviation);
      },
      variance,
      deviation);
}

void var(JvpCall& call) {
  call.run();
  const Dims over{call.dims(1), call.flag(3)};
  call.set_tangent(0, variance_tangent(call.tangent(0), call[0], over, call.arg(2)));
}

void std_(JvpCall& call) {
  call.run();
  const Dims over{call.dims(1), call.flag(3)};
  const Tensor variance = variance_tangent(call.tangent(0), call[0], over, call.arg(2));
  call.set_tangent(0, deviation_tangent(variance, call.result()));
}

void var_mean(JvpCall& call) {
  call.run();
  const Dims over{call.dims(1), call.flag(3)};
  call.set_tangent(0, variance_tangent(call.tangent(0), call[0], over, call.arg(2)));
  call.set_tangent(1, over.mean(call.tangent(0)));
}

void std_mean(JvpCall& call) {
  call.run();
  const Dims over{call.dims(1), call.flag(3)};
  const Tensor variance = variance_tangent(call.tangent(0), call[0], over, call.arg(2));
  call.set_tangent(0, deviation_tangent(variance, call.result(0)));
  call.set_tangent(1, over.mean(call.tangent(0)));
}

void nansum(JvpCall& call) {
  call.run();
  const Tensor t = at::where(call[0].isnan(), 0, call.tangent(0));
  const Dims over{call.dims(1), call.flag(2)};
  call.set_tangent(0, over.sum(t));
}

c10::SymInt numel(c10::SymIntArrayRef sizes) {
  c10::SymInt count = 1;
  for (const c10::SymInt& size : sizes) {
    count *= size;
  }
  return count;
}

// Expands a gradient to the sizes before the reduction.
Tensor spread(const Tensor& g, c10::SymIntArrayRef sizes, const Dims& over) {
  return over.kept(g, static_cast<int64_t>(sizes.size())).expand_symint(sizes);
}

Tensor shared_out(const Tensor& g, const c10::SymInt& count) {
  const auto number = count.maybe_as_int();
  return number ? in_one_pass([&](const auto& g) { return g / *number; }, g) : g / count;
}

Tensor mean_gradient(const Tensor& g, c10::SymIntArrayRef sizes, const Dims& over) {
  return spread(shared_out(g, over.count(sizes)), sizes, over);
}

Tensor cumsum_gradient(const Tensor& g, int64_t dim) {
  return g.dim() == 0 ? g : g.flip(dim).cumsum(dim).flip(dim);
}

Tensor variance_gradient(
    const Tensor& g, const Tensor& x, const Dims& over, const c10::IValue& correction) {
  if (x.sym_numel() == 0) {
    return {}; // there is nothing that depends on g
  }
  const double taken = correction.isNone() ? 1 : correction.toScalar().toDouble();
  const double count = static_cast<double>(over.count(x).expect_int()) - taken;
  return (2 / count) * over.kept(g, x.dim()) * (x - x.mean(over.dims, /*keepdim=*/true));
}

// The gradients by the variance and the mean, either of which may be absent.
Tensor variance_and_mean_gradient(
    const Tensor& g_variance, const Tensor& g_mean, const VjpCall& call) {
  const Dims over{call.dims(1), call.flag(3)};
  return sum_of(
      {g_variance.defined() ? variance_gradient(g_variance, call[0], over, call.arg(2)) : Tensor(),
       g_mean.defined() ? mean_gradient(g_mean, call.sizes_of(0), over) : Tensor()});
}

void var_mean_vjp(VjpCall& call) {
  call.give(0, variance_and_mean_gradient(call.cotangents()[0], call.cotangents()[1], call));
}

void std_mean_vjp(VjpCall& call) {
  const Tensor& g = call.cotangents()[0];
  const Tensor g_variance = g.defined() ? deviation_tangent(g, call.result(0)) : g;
  call.give(0, variance_and_mean_gradient(g_variance, call.cotangents()[1], call));
}

Tensor on_diagonal(const Tensor& g, c10::SymIntArrayRef sizes) {
  const c10::SymInt length = std::min(sizes[0], sizes[1]);
  return at::diagonal_backward_symint(g.expand_symint(length), sizes, 0, 0, 1);
}

} // namespace

void add_reductions(Table& rules) {
  rules["sum"]
      .jvp(TANGENT(0, reduced(t, c, Dims{}, c.arg(1), itself_summed)))
      .vjp(VJP(0, g.expand_symint(c.sizes_of(0))))
      .linear()
      .along(Along::Reduces);
  rules["sum.dim_IntList"]
      .jvp(TANGENT(0, reduced(t, c, Dims{c.dims(1), c.flag(2)}, c.arg(3), itself_summed)))
      .vjp(VJP(0, spread(g, c.sizes_of(0), Dims{c.dims(1), c.flag(2)})))
      .linear()
      .along(Along::Reduces);
  rules["mean"]
      .jvp(TANGENT(0, reduced(t, c, Dims{}, c.arg(1), mean_of_all)))
      .vjp(VJP(0, shared_out(g, numel(c.sizes_of(0))).expand_symint(c.sizes_of(0))))
      .linear()
      .along(Along::Reduces);
  rules["mean.dim"]
      .jvp(TANGENT(0, reduced(t, c, Dims{c.dims(1), c.flag(2)}, c.arg(3), mean_of_all)))
      .vjp(VJP(0, mean_gradient(g, c.sizes_of(0), Dims{c.dims(1), c.flag(2)})))
      .linear()
      .along(Along::Reduces);
  LINEAR("cumsum", cumsum_gradient(g, c.dim(1))).along(Along::Scans);
  LINEAR("trace", on_diagonal(g, c.sizes_of(0)));
  rules["nansum"]
      .jvp(nansum)
      .vjp(VJP(0, at::where(x.isnan(), 0, spread(g, c.sizes_of(0), Dims{c.dims(1), c.flag(2)}))))
      .piecewise_linear()
      .along(Along::Reduces);
  rules["var.correction"]
      .jvp(var)
      .vjp(VJP(0, variance_gradient(g, x, Dims{c.dims(1), c.flag(3)}, c.arg(2))))
      .along(Along::Reduces);
  rules["std.correction"]
      .jvp(std_)
      .vjp(VJP(
          0, variance_gradient(deviation_tangent(g, y), x, Dims{c.dims(1), c.flag(3)}, c.arg(2))))
      .along(Along::Reduces);
  rules["var_mean.correction"]
      .jvp(var_mean)
      .vjp(var_mean_vjp, {.by = {"self"}, .of = {"result", "result1"}, .saves = {"self"}})
      .along(Along::Reduces);
  rules["std_mean.correction"]
      .jvp(std_mean)
      .vjp(std_mean_vjp, {.by = {"self"}, .of = {"result", "result1"}, .saves = {"self", "result"}})
      .along(Along::Reduces);
  rules["linalg__powsum"].along(Along::Reduces);
}

} // namespace torchlayers
