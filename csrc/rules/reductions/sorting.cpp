// Operators that choose elements by their order: the tangent of the result is chosen in the same
// way.
#include <cmath>

#include "rules/families.h"
#include "rules/reductions/dims.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

Tensor chosen(const Tensor& t, int64_t dim, const Tensor& indices, bool keepdim) {
  if (t.dim() == 0) {
    return t;
  }
  if (keepdim) {
    return t.gather(dim, indices);
  }
  return t.gather(dim, indices.unsqueeze(dim)).squeeze(dim);
}

// (values, indices), where dimension `dim` is reduced to one element.
template <size_t Dim>
void one_of(JvpCall& call) {
  call.run();
  call.set_tangent(0, chosen(call.tangent(0), call.dim(Dim), call.result(1), call.flag(Dim + 1)));
}

// (values, indices), with the dimension kept.
template <size_t Dim>
void many_of(JvpCall& call) {
  call.run();
  call.set_tangent(0, chosen(call.tangent(0), call.dim(Dim), call.result(1), /*keepdim=*/true));
}

// If the result is nan, an operator that skips nan chose among nans only, and any other one chose a
// nan, possibly among other values.
template <bool SkipsNan>
Tensor is_chosen(const Tensor& x, const Tensor& value) {
  return (SkipsNan ? value : x).isnan().logical_or(x == value);
}

template <class T>
bool is_chosen(T x, T value) {
  return x == value || (std::isnan(x) && std::isnan(value));
}

Tensor count_if_in_one_pass(const Tensor& x, const Tensor& value) {
  return sum_if_in_one_pass(
      [](const auto& x, const auto& value) { return where(is_chosen(x, value), 1, 0); }, x, value);
}

// If several elements attain the extreme, each gets an equal share.
template <bool SkipsNan>
Tensor shared(const Tensor& t, const Tensor& x, const Tensor& value) {
  const Tensor sum = sum_if_in_one_pass(
      [](const auto& t, const auto& x, const auto& value) {
        return where(is_chosen(x, value), t, 0);
      },
      t,
      x,
      value);
  const Tensor count = sum.defined() ? count_if_in_one_pass(x, value) : sum;
  if (count.defined()) {
    return in_one_pass([](const auto& sum, const auto& count) { return sum / count; }, sum, count);
  }
  const Tensor chosen = is_chosen<SkipsNan>(x, value);
  return at::where(chosen, t, 0).sum() / chosen.sum();
}

// The same along dimensions. nan equals nothing, not even itself: where it is the extreme, the
// tangent is 0 / 0, and so is the gradient of all elements that it was chosen from.
Tensor shared_along(const Tensor& t, const Tensor& x, const Tensor& value, const Dims& over) {
  const Tensor is_chosen = x == over.kept(value, x.dim());
  return over.sum(at::where(is_chosen, t, 0)) / over.sum(is_chosen);
}

void aminmax(JvpCall& call) {
  call.run();
  Dims over{{}, call.flag(2)};
  if (!call.arg(1).isNone()) {
    over.dims = {call.dim(1)};
  }
  for (size_t i : {0, 1}) {
    call.set_tangent(i, shared_along(call.tangent(0), call[0], call.result(i), over));
  }
}

template <bool SkipsNan>
Tensor shares_of(const Tensor& g, const Tensor& x, const Tensor& value) {
  const auto share = [](const auto& g, const auto& x, const auto& value, const auto& count) {
    return where(is_chosen(x, value), g / count, 0);
  };
  if (const Tensor count = count_if_in_one_pass(x, value); count.defined()) {
    if (const Tensor shares = if_in_one_pass(share, g, x, value, count); shares.defined()) {
      return shares;
    }
  }
  const Tensor chosen = is_chosen<SkipsNan>(x, value);
  return at::where(chosen, g / chosen.sum(), 0);
}

Tensor share_out(const Tensor& g, const Tensor& x, const Tensor& value) {
  return shares_of</*SkipsNan=*/false>(g, x, value);
}

Tensor share_out_along(const Tensor& g, const Tensor& x, const Tensor& value, const Dims& over) {
  const Tensor is_chosen = x == over.kept(value, x.dim());
  const Dims kept{over.dims, /*keepdim=*/true};
  return over.kept(g, x.dim()) / kept.sum(is_chosen) * is_chosen;
}

void aminmax_vjp(VjpCall& call) {
  Dims over{{}, call.flag(2)};
  if (!call.arg(1).isNone()) {
    over.dims = {call.dim(1)};
  }
  Tensor sum;
  for (size_t i : {0, 1}) {
    const Tensor& g = call.cotangents()[i];
    sum = sum_of({sum, g.defined() ? share_out_along(g, call[0], call.result(i), over) : Tensor()});
  }
  call.give(0, sum);
}

// Puts gradients back where the indices point.
Tensor put_back(
    const Tensor& g, c10::SymIntArrayRef sizes, int64_t dim, const Tensor& indices, bool keepdim) {
  return at::value_selecting_reduction_backward_symint(g, dim, indices, sizes, keepdim);
}

} // namespace

void add_sorting(Table& rules) {
  for (const char* name : {"max", "min", "median"}) {
    rules[name]
        .jvp(TANGENT(0, shared<false>(t, x, y)))
        .vjp(VJP(0, share_out(g, x, y)))
        .selects(Along::Reduces);
  }
  rules["nanmedian"]
      .jvp(TANGENT(0, shared<true>(t, x, y)))
      .vjp(VJP(0, shares_of<true>(g, x, y)))
      .selects(Along::Reduces);
  for (const char* name : {"amax", "amin"}) {
    rules[name]
        .jvp(TANGENT(0, shared_along(t, x, y, Dims{c.dims(1), c.flag(2)})))
        .vjp(VJP(0, share_out_along(g, x, y, Dims{c.dims(1), c.flag(2)})))
        .selects(Along::Reduces);
  }
  rules["aminmax"]
      .jvp(aminmax)
      .vjp(aminmax_vjp, {.by = {"self"}, .of = {"min", "max"}, .saves = {"self", "min", "max"}})
      .selects(Along::Reduces);
  for (const char* name : {"max.dim", "min.dim", "median.dim", "nanmedian.dim", "mode"}) {
    rules[name]
        .jvp(one_of<1>)
        .vjp(VJP(0, put_back(g, c.sizes_of(0), c.dim(1), c.result(1), c.flag(2))))
        .selects(Along::Reduces);
  }
  rules["kthvalue"]
      .jvp(one_of<2>)
      .vjp(VJP(0, put_back(g, c.sizes_of(0), c.dim(2), c.result(1), c.flag(3))))
      .selects(Along::Reduces);
  rules["topk"]
      .jvp(many_of<2>)
      .vjp(VJP(0, put_back(g, c.sizes_of(0), c.dim(2), c.result(1), /*keepdim=*/true)))
      .selects(Along::Mixes);
  rules["sort"]
      .jvp(many_of<1>)
      .vjp(VJP(0, put_back(g, c.sizes_of(0), c.dim(1), c.result(1), /*keepdim=*/true)))
      .selects(Along::Mixes);
  rules["sort.stable"]
      .jvp(many_of<2>)
      .vjp(VJP(0, put_back(g, c.sizes_of(0), c.dim(2), c.result(1), /*keepdim=*/true)))
      .selects(Along::Mixes);
  for (const char* name : {"cummax", "cummin"}) {
    rules[name]
        .jvp(many_of<1>)
        .vjp(VJP(0, add_back(g, c.sizes_of(0), c.dim(1), c.result(1))))
        .selects(Along::Scans);
  }
}

} // namespace torchlayers
