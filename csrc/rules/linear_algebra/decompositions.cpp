// Cholesky and QR decompositions.
#include "core/errors.h"
#include "rules/families.h"
#include "rules/linear_algebra/triangles.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

Tensor mean_of(const Tensor& one, const Tensor& other) {
  return in_one_pass([](const auto& a, const auto& b) { return 0.5 * (a + b); }, one, other);
}

// The lower triangle, with half of the diagonal.
Tensor lower_half(const Tensor& square) {
  return mean_of(square.tril(), square.tril(-1));
}

Tensor upper_half(const Tensor& square) {
  return mean_of(square.triu(), square.triu(1));
}

// The upper triangle, with half of the diagonal, plus its adjoint.
Tensor upper_half_mirrored(const Tensor& square) {
  const Tensor above = square.triu();
  Tensor whole = above + above.mH();
  whole.diagonal(0, -2, -1).mul_(0.5);
  return whole;
}

// linalg_cholesky_ex(A, upper, check_errors) -> (L, info), cholesky(A, upper) -> L: L^-1 L' is the
// lower half of L^-1 A' L^-H.
void cholesky(JvpCall& call) {
  call.run();
  const bool is_upper = call.flag(1);
  const Tensor factor = is_upper ? call.result(0).mH() : call.result(0);
  const Tensor left = inverse_times(factor, call.tangent(0), /*is_upper=*/false);
  const Tensor tangent =
      factor.matmul(lower_half(times_inverse(left, factor.mH(), /*is_upper=*/true)));
  call.set_tangent(0, is_upper ? tangent.mH() : tangent);
}

Tensor cholesky_gradient(const Tensor& g, const Tensor& result, bool is_upper) {
  const Tensor factor = is_upper ? result.mH() : result;
  const Tensor lower = factor.mH().matmul(is_upper ? g.mH() : g).tril();
  const Tensor hermitian = 0.5 * (lower + lower.tril(-1).mH()); // as the input matrix is
  const Tensor left = inverse_times(factor.mH(), hermitian, /*is_upper=*/true);
  return times_inverse(left, factor, /*is_upper=*/false);
}

// linalg_qr(A, mode) -> (Q, R), with Q^H Q' antihermitian and R' upper triangular, with a real
// diagonal where R has one.
void check_qr(const Operands& call) {
  const auto mode = call.arg(1).toStringView();
  if (mode == "r") {
    raise("the derivative of linalg.qr needs Q, which mode='r' leaves out: use mode='reduced'.");
  }
  if (mode == "complete" && call.result(0).sym_size(-2) > call.result(1).sym_size(-1)) {
    raise(
        "linalg.qr with mode='complete' has no derivative for a matrix with more rows than "
        "columns, because the last columns of Q are not unique: use mode='reduced'.");
  }
}

// The number of R's rows that are divided by, where there are no more rows than columns. The
// diagonal of the last one only affects the phase of a complex column of Q.
c10::SymInt rows_divided_by(const Tensor& r) {
  const c10::SymInt rows = r.sym_size(-2);
  return r.is_complex() || rows == 0 ? rows : rows - 1;
}

void qr(JvpCall& call) {
  call.run();
  check_qr(call);
  const Tensor t = call.tangent(0);
  const Tensor& q = call.result(0);
  const Tensor& r = call.result(1);
  if (q.sym_size(-2) <= r.sym_size(-1)) {
    const Tensor inner = q.mH().matmul(t);
    const Tensor left = head(inner, -1, r.sym_size(-2));
    const Tensor square = times_inverse_of_first(left, r, rows_divided_by(r), /*is_upper=*/true);
    const Tensor turn = square - upper_half(square + square.mH());
    call.set_tangent(0, q.matmul(turn));
    call.set_tangent(1, inner - turn.matmul(r));
  } else {
    const Tensor moved = times_inverse(t, r, /*is_upper=*/true);
    const Tensor square = q.mH().matmul(moved);
    const Tensor stretch = upper_half(square + square.mH());
    call.set_tangent(0, moved - q.matmul(stretch));
    call.set_tangent(1, stretch.matmul(r));
  }
}

void qr_vjp(VjpCall& call) {
  check_qr(call);
  const Tensor& q = call.result(0);
  const Tensor& r = call.result(1);
  const Tensor& by_q = call.cotangents()[0];
  const Tensor& by_r = call.cotangents()[1];
  Tensor square;
  if (by_r.defined()) {
    square = by_r.matmul(r.mH());
  }
  if (by_q.defined()) {
    const Tensor turn = q.mH().matmul(by_q);
    square = square.defined() ? square - turn : -turn;
  }
  const Tensor stretch = upper_half_mirrored(square);
  const c10::SymInt columns = r.sym_size(-1);
  if (q.sym_size(-2) <= columns) {
    const Tensor inner =
        times_inverse_of_first(stretch - square, r.mH(), rows_divided_by(r), /*is_upper=*/false);
    call.give(0, q.matmul(sum_of({with_columns(inner, columns), by_r})));
  } else {
    call.give(0, times_inverse(sum_of({q.matmul(stretch), by_q}), r.mH(), /*is_upper=*/false));
  }
}

} // namespace

void add_decompositions(Table& rules) {
  rules["linalg_cholesky_ex"]
      .jvp(cholesky)
      .vjp(VJP(0, cholesky_gradient(g, y, c.flag(1))))
      .along(Along::Matrices);
  rules["cholesky"]
      .jvp(cholesky)
      .vjp(VJP(0, cholesky_gradient(g, y, c.flag(1))))
      .along(Along::Matrices);
  rules["linalg_qr"]
      .jvp(qr)
      .vjp(qr_vjp, {.by = {"A"}, .of = {"Q", "R"}, .saves = {"Q", "R"}})
      .along(Along::Matrices);
  for (const char* name : {"linalg_ldl_factor_ex", "geqrf"}) {
    rules[name].along(Along::Matrices);
  }
}

} // namespace torchlayers
