// Matrix products, and sums of one with something else.
#include "families.h"
#include "forms.h"

namespace torchlayers {
namespace {

using at::Scalar;
using at::Tensor;

// beta * self + alpha * product(a, b), on tangents where they are there.
template <class Product, class Fused>
void add_product(Call& call, const Product& product, const Fused& fused) {
  call.run();
  const Scalar beta = call.scalar(3);
  const Scalar alpha = call.scalar(4);
  Tensor sum;
  if (call.has_tangent(0)) {
    sum = times(call.tangent(0), beta);
  }
  const auto add = [&](const Tensor& a, const Tensor& b) {
    sum = sum.defined() ? fused(sum, a, b, alpha) : times(product(a, b), alpha);
  };
  if (call.has_tangent(1)) {
    add(call.tangent(1), call[2]);
  }
  if (call.has_tangent(2)) {
    add(call[1], call.tangent(2));
  }
  call.set_tangent(0, sum);
}

void addmm(Call& call) {
  add_product(
      call,
      [](const Tensor& a, const Tensor& b) { return at::mm(a, b); },
      [](const Tensor& s, const Tensor& a, const Tensor& b, const Scalar& alpha) {
        return at::addmm(s, a, b, 1, alpha);
      });
}

void addmv(Call& call) {
  add_product(
      call,
      [](const Tensor& a, const Tensor& b) { return at::mv(a, b); },
      [](const Tensor& s, const Tensor& a, const Tensor& b, const Scalar& alpha) {
        return at::addmv(s, a, b, 1, alpha);
      });
}

void baddbmm(Call& call) {
  add_product(
      call,
      [](const Tensor& a, const Tensor& b) { return at::bmm(a, b); },
      [](const Tensor& s, const Tensor& a, const Tensor& b, const Scalar& alpha) {
        return at::baddbmm(s, a, b, 1, alpha);
      });
}

void addbmm(Call& call) {
  add_product(
      call,
      [](const Tensor& a, const Tensor& b) { return at::bmm(a, b).sum(0); },
      [](const Tensor& s, const Tensor& a, const Tensor& b, const Scalar& alpha) {
        return at::addbmm(s, a, b, 1, alpha);
      });
}

void addr(Call& call) {
  add_product(
      call,
      [](const Tensor& a, const Tensor& b) { return at::outer(a, b); },
      [](const Tensor& s, const Tensor& a, const Tensor& b, const Scalar& alpha) {
        return at::addr(s, a, b, 1, alpha);
      });
}

void linear(Call& call) {
  call.run();
  Tensor bias = call.has_tangent(2) ? call.tangent(2) : Tensor();
  Tensor sum;
  if (call.has_tangent(0)) {
    sum = at::linear(call.tangent(0), call[1], std::exchange(bias, {}));
  }
  if (call.has_tangent(1)) {
    sum = sum_of({sum, at::linear(call[0], call.tangent(1), std::exchange(bias, {}))});
  }
  call.set_tangent(0, sum.defined() ? sum : bias);
}

} // namespace

void add_products(Table& rules) {
  MULTILINEAR("mm", 0, 1);
  MULTILINEAR("bmm", 0, 1);
  MULTILINEAR("mv", 0, 1);
  MULTILINEAR("dot", 0, 1);
  MULTILINEAR("vdot", 0, 1);
  MULTILINEAR("outer", 0, 1);
  MULTILINEAR("matmul", 0, 1);
  MULTILINEAR("linalg_cross", 0, 1);
  MULTILINEAR("_trilinear", 0, 1, 2);
  WRITTEN("addmm", addmm);
  WRITTEN("addmv", addmv);
  WRITTEN("addbmm", addbmm);
  WRITTEN("baddbmm", baddbmm);
  WRITTEN("addr", addr);
  WRITTEN("linear", linear);
}

} // namespace torchlayers
