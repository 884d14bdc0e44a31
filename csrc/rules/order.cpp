// Operators that choose elements by their order: what is chosen, its tangent is chosen.
#include "dims.h"
#include "families.h"
#include "forms.h"

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

// (values, indices) with the dimension at `dim` reduced to one element.
template <size_t Dim>
void one_of(Call& call) {
  call.run();
  call.set_tangent(
      0, chosen(call.tangent(0), call.integer(Dim), call.result(1), call.flag(Dim + 1)));
}

// (values, indices), the dimension kept.
template <size_t Dim>
void many_of(Call& call) {
  call.run();
  call.set_tangent(0, chosen(call.tangent(0), call.integer(Dim), call.result(1), /*keepdim=*/true));
}

// Where several elements are the extreme one, each has an equal share.
Tensor shared(const Tensor& t, const Tensor& x, const Tensor& value) {
  const Tensor is_chosen = value.isnan().logical_and(x.isnan()).logical_or(x == value);
  return at::where(is_chosen, t, 0).sum() / is_chosen.sum();
}

Tensor shared_along(const Tensor& t, const Tensor& x, const Tensor& value, const Dims& over) {
  if (x.dim() == 0) {
    return t;
  }
  const Tensor is_chosen = x == over.kept(value, x.dim());
  return over.sum(at::where(is_chosen, t, 0)) / over.sum(is_chosen);
}

void aminmax(Call& call) {
  call.run();
  Dims over{{}, call.flag(2)};
  if (!call.arg(1).isNone()) {
    over.dims = {call.integer(1)};
  }
  for (size_t i : {0, 1}) {
    call.set_tangent(i, shared_along(call.tangent(0), call[0], call.result(i), over));
  }
}

} // namespace

void add_order(Table& rules) {
  ELEMENTWISE("max", shared(t, x, y));
  ELEMENTWISE("min", shared(t, x, y));
  ELEMENTWISE("median", shared(t, x, y));
  ELEMENTWISE("nanmedian", shared(t, x, y));
  ELEMENTWISE("amax", shared_along(t, x, y, Dims{c.integers(1), c.flag(2)}));
  ELEMENTWISE("amin", shared_along(t, x, y, Dims{c.integers(1), c.flag(2)}));
  WRITTEN("aminmax", aminmax);
  WRITTEN("max.dim", one_of<1>);
  WRITTEN("min.dim", one_of<1>);
  WRITTEN("median.dim", one_of<1>);
  WRITTEN("nanmedian.dim", one_of<1>);
  WRITTEN("mode", one_of<1>);
  WRITTEN("kthvalue", one_of<2>);
  WRITTEN("topk", many_of<2>);
  WRITTEN("sort", many_of<1>);
  WRITTEN("sort.stable", many_of<2>);
  WRITTEN("cummax", many_of<1>);
  WRITTEN("cummin", many_of<1>);
}

} // namespace torchlayers
