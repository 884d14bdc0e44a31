// Inverses, solutions of linear systems, matrix exponentials. The factors that an operator returns
// beside its result are constants to the layers below: where one of those differentiates, a rule
// factors its arguments again.
#include <tuple>

#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

// linalg_inv_ex(A, check_errors) -> (inverse, info)
void inverse(JvpCall& call) {
  call.run();
  const Tensor& y = call.result(0);
  call.set_tangent(0, -y.matmul(call.tangent(0)).matmul(y));
}

// _linalg_solve_ex(A, B, left, check_errors) -> (X, LU, pivots, info): A X' = B' - A' X.
void solve_ex(JvpCall& call) {
  call.run();
  const Tensor& a = call[0];
  const Tensor& x = call.result(0);
  const bool left = call.flag(2);
  const bool is_vector = x.dim() == 1 || x.dim() < a.dim();
  const auto as_matrix = [&](const Tensor& tensor) {
    return is_vector ? tensor.unsqueeze(-1) : tensor;
  };
  Tensor right;
  if (call.has_tangent(1)) {
    right = as_matrix(call.tangent(1));
  }
  if (call.has_tangent(0)) {
    const Tensor solution = as_matrix(x);
    const Tensor product =
        left ? call.tangent(0).matmul(solution) : solution.matmul(call.tangent(0));
    right = right.defined() ? right - product : -product;
  }
  const Tensor tangent = is_differentiated_below({a, right})
                             ? at::linalg_solve(a, right, left)
                             : at::linalg_lu_solve(call.result(1), call.result(2), right, left);
  call.set_tangent(0, is_vector ? tangent.squeeze(-1) : tangent);
}

void solve_ex_vjp(VjpCall& call) {
  const Tensor& a = call[0];
  const Tensor& x = call.result(0);
  const Tensor& g = call.cotangents()[0];
  const bool left = call.flag(2);
  const bool is_vector = x.dim() == 1 || x.dim() < a.dim();
  const auto as_matrix = [&](const Tensor& tensor) {
    return is_vector ? tensor.unsqueeze(-1) : tensor;
  };
  const Tensor right = as_matrix(g);
  const Tensor by_right =
      is_differentiated_below({a, g})
          ? at::linalg_solve(a.mH(), right, left)
          : at::linalg_lu_solve(call.result(1), call.result(2), right, left, /*adjoint=*/true);
  if (call.wants(0)) {
    const Tensor solution = as_matrix(x).mH();
    call.give(0, left ? -by_right.matmul(solution) : -solution.matmul(by_right));
  }
  call.give(1, is_vector ? by_right.squeeze(-1) : by_right);
}

// linalg_solve_triangular(A, B, *, upper, left, unitriangular)
void solve_triangular(JvpCall& call) {
  call.run();
  const Tensor& a = call[0];
  const Tensor& x = call.result();
  const bool upper = call.flag(2);
  const bool left = call.flag(3);
  const bool unitriangular = call.flag(4);
  Tensor right;
  if (call.has_tangent(1)) {
    right = call.tangent(1);
  }
  if (call.has_tangent(0)) {
    const int64_t offset = unitriangular ? 1 : 0;
    const Tensor t = upper ? call.tangent(0).triu(offset) : call.tangent(0).tril(-offset);
    const Tensor product = left ? t.matmul(x) : x.matmul(t);
    right = right.defined() ? right - product : -product;
  }
  call.set_tangent(0, at::linalg_solve_triangular(a, right, upper, left, unitriangular));
}

void solve_triangular_vjp(VjpCall& call) {
  const bool upper = call.flag(2);
  const bool left = call.flag(3);
  const bool unitriangular = call.flag(4);
  const Tensor by_right =
      at::linalg_solve_triangular(call[0].mH(), call.cotangents()[0], !upper, left, unitriangular);
  if (call.wants(0)) {
    const Tensor solution = call.result().mH();
    const Tensor full = left ? by_right.matmul(solution) : solution.matmul(by_right);
    const int64_t offset = unitriangular ? 1 : 0;
    call.give(0, -(upper ? full.triu(offset) : full.tril(-offset)));
  }
  call.give(1, by_right);
}

// triangular_solve(B, A, upper, transpose, unitriangular) -> (X, a copy of A)
struct Triangular {
  Tensor matrix; // the matrix that X is multiplied by
  bool upper;
  bool transposed;
  bool unitriangular;

  explicit Triangular(const Operands& call)
      : upper(call.flag(2) != call.flag(3)), transposed(call.flag(3)), unitriangular(call.flag(4)) {
    matrix = turned(call[1]);
  }

  Tensor turned(const Tensor& a) const {
    return transposed ? a.mT() : a;
  }
  Tensor triangle(const Tensor& full) const {
    const int64_t offset = unitriangular ? 1 : 0;
    return upper ? full.triu(offset) : full.tril(-offset);
  }
  Tensor solve(const Tensor& right) const {
    return at::linalg_solve_triangular(matrix, right, upper, /*left=*/true, unitriangular);
  }
  Tensor solve_adjoint(const Tensor& right) const {
    return at::linalg_solve_triangular(matrix.mH(), right, !upper, /*left=*/true, unitriangular);
  }
};

void triangular_solve(JvpCall& call) {
  call.run();
  const Triangular triangular(call);
  Tensor right = tangent_or_none(call, 0);
  if (call.has_tangent(1)) {
    const Tensor t = triangular.triangle(triangular.turned(call.tangent(1)));
    right = sum_of({right, -t.matmul(call.result(0))});
    call.set_tangent(1, call.tangent(1).expand_symint(call.result(1).sym_sizes()));
  }
  call.set_tangent(0, triangular.solve(right));
}

void triangular_solve_vjp(VjpCall& call) {
  const Tensor& g = call.cotangents()[0];
  Tensor by_matrix = call.cotangents()[1];
  if (g.defined()) {
    const Triangular triangular(call);
    const Tensor by_right = triangular.solve_adjoint(g);
    if (call.wants(1)) {
      const Tensor full = -by_right.matmul(call.result(0).mH());
      by_matrix = sum_of({by_matrix, triangular.turned(triangular.triangle(full))});
    }
    call.give(0, by_right);
  }
  call.give(1, by_matrix);
}

// linalg_lu_solve(LU, pivots, B, *, left, adjoint): solves with A = P L U, or with A^H.
struct Factored {
  Tensor permutation;
  Tensor lower;
  Tensor upper;

  explicit Factored(const Operands& call) {
    std::tie(permutation, lower, upper) = at::lu_unpack(call[0], call[1]);
  }

  Tensor tangent(const Tensor& t) const {
    return permutation.matmul(t.tril(-1).matmul(upper) + lower.matmul(t.triu()));
  }
  Tensor gradient(const Tensor& g) const {
    const Tensor unpermuted = permutation.mT().matmul(g);
    return unpermuted.matmul(upper.mH()).tril(-1) + lower.mH().matmul(unpermuted).triu();
  }
};

void lu_solve(JvpCall& call) {
  call.run();
  const bool left = call.flag(3);
  Tensor right = tangent_or_none(call, 2);
  if (call.has_tangent(0)) {
    const Tensor& x = call.result();
    const Tensor t = Factored(call).tangent(call.tangent(0));
    const Tensor turned = call.flag(4) ? t.mH() : t;
    right = sum_of({right, -(left ? turned.matmul(x) : x.matmul(turned))});
  }
  call.set_tangent(0, call.with({{2, right}}));
}

void lu_solve_vjp(VjpCall& call) {
  const bool left = call.flag(3);
  const bool adjoint = call.flag(4);
  const Tensor by_right =
      at::linalg_lu_solve(call[0], call[1], call.cotangents()[0], left, !adjoint);
  if (call.wants(0)) {
    const Tensor solution = call.result().mH();
    const Tensor full = left ? by_right.matmul(solution) : solution.matmul(by_right);
    call.give(0, -Factored(call).gradient(adjoint ? full.mH() : full));
  }
  call.give(2, by_right);
}

// A is L L^H, or U^H U: the tangent of A from that of its factor, and the gradient by the factor.
Tensor product_tangent(const Tensor& factor, const Tensor& t, bool upper) {
  const Tensor half = upper ? factor.mH().matmul(t) : t.matmul(factor.mH());
  return half + half.mH();
}

Tensor product_gradient(const Tensor& factor, const Tensor& g, bool upper) {
  const Tensor both = g + g.mH();
  return upper ? factor.matmul(both) : both.matmul(factor);
}

// cholesky_inverse(L, upper)
void cholesky_inverse(JvpCall& call) {
  call.run();
  const Tensor& y = call.result();
  const Tensor t = product_tangent(call[0], call.tangent(0), call.flag(1));
  call.set_tangent(0, -y.matmul(t).matmul(y));
}

Tensor cholesky_inverse_gradient(
    const Tensor& g, const Tensor& factor, const Tensor& y, bool upper) {
  return -product_gradient(factor, y.matmul(g).matmul(y), upper);
}

// cholesky_solve(B, L, upper)
void cholesky_solve(JvpCall& call) {
  call.run();
  const bool upper = call.flag(2);
  Tensor right = tangent_or_none(call, 0);
  if (call.has_tangent(1)) {
    const Tensor t = product_tangent(call[1], call.tangent(1), upper);
    right = sum_of({right, -t.matmul(call.result())});
  }
  call.set_tangent(0, at::cholesky_solve(right, call[1], upper));
}

void cholesky_solve_vjp(VjpCall& call) {
  const bool upper = call.flag(2);
  const Tensor by_right = at::cholesky_solve(call.cotangents()[0], call[1], upper);
  if (call.wants(1)) {
    const Tensor full = by_right.matmul(call.result().mH());
    call.give(1, -product_gradient(call[1], full, upper));
  }
  call.give(0, by_right);
}

// The exponential of (A, E; 0, A) has the derivative of A's exponential, along E, in the place of
// E.
Tensor exponential_tangent(const Tensor& e, const Tensor& a) {
  const Tensor above = at::cat({a, e}, /*dim=*/-1);
  const Tensor below = at::cat({at::zeros_like(a), a}, /*dim=*/-1);
  const c10::SymInt n = a.sym_size(-1);
  return at::linalg_matrix_exp(at::cat({above, below}, /*dim=*/-2))
      .narrow_symint(-2, 0, n)
      .narrow_symint(-1, n, n);
}

} // namespace

void add_linalg(Table& rules) {
  rules["linalg_inv_ex"]
      .jvp(inverse)
      .vjp(VJP(0, -y.mH().matmul(g.matmul(y.mH()))))
      .along(Along::Matrices);
  rules["linalg_solve_triangular"]
      .jvp(solve_triangular)
      .vjp(solve_triangular_vjp, {.by = {"self", "B"}, .saves = {"self", "result"}});
  rules["triangular_solve"]
      .jvp(triangular_solve)
      .vjp(
          triangular_solve_vjp,
          {.by = {"self", "A"},
           .of = {"solution", "cloned_coefficient"},
           .saves = {"A", "solution"}});
  rules["_linalg_solve_ex"].jvp(solve_ex).vjp(
      solve_ex_vjp, {.by = {"A", "B"}, .saves = {"A", "result", "LU", "pivots"}});
  rules["linalg_lu_solve"].jvp(lu_solve).vjp(
      lu_solve_vjp, {.by = {"LU", "B"}, .saves = {"LU", "pivots", "result"}});
  rules["cholesky_inverse"]
      .jvp(cholesky_inverse)
      .vjp(VJP(0, cholesky_inverse_gradient(g, x, y, c.flag(1))))
      .along(Along::Matrices);
  rules["cholesky_solve"]
      .jvp(cholesky_solve)
      .vjp(cholesky_solve_vjp, {.by = {"self", "input2"}, .saves = {"input2", "result"}});
  rules["linalg_matrix_exp"].vjp(VJP(0, exponential_tangent(g, x.mH()))).along(Along::Matrices);
}

} // namespace torchlayers
