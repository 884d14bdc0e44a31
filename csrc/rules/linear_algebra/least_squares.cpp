// Pseudo-inverses and least squares, of matrices of constant rank.
#include "rules/families.h"
#include "rules/reductions/dims.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

// linalg_pinv(A, *, atol, rtol, hermitian), assuming constant rank.
void pseudo_inverse(JvpCall& call) {
  call.run();
  if (!call.has_tangent(0)) {
    return; // only a tolerance has one: the rank is constant
  }
  const Tensor& a = call[0];
  const Tensor& y = call.result();
  const Tensor t = call.tangent(0);
  const Tensor back = t.mH();
  const Tensor left = y.matmul(y.mH().matmul(back));
  const Tensor right = back.matmul(y.mH()).matmul(y);
  call.set_tangent(
      0,
      left - left.matmul(a).matmul(y) + right - y.matmul(a).matmul(right) - y.matmul(t).matmul(y));
}

Tensor pseudo_inverse_gradient(const Tensor& g, const Tensor& a, const Tensor& y) {
  const Tensor back = y.mH();
  const Tensor inner = g.mH().matmul(y);
  const Tensor left = inner.matmul(back);
  const Tensor right = back.matmul(y.matmul(g.mH() - inner.matmul(a)));
  return left - a.matmul(y.matmul(left)) + right - y.matmul(inner).mH();
}

// linalg_lstsq(A, B, rcond, *, driver) -> (X, residuals, rank, singular values), where X is the
// pseudo-inverse P times B, assuming constant rank (Golub and Pereyra, "The differentiation of
// pseudo-inverses and nonlinear least squares problems whose variables separate", 1973). The
// residuals are the sums of the squares of R = B - A X, to which A is orthogonal.
struct LeastSquares {
  const Tensor& a;
  bool is_vector;
  Tensor x;
  Tensor rest;    // R
  Tensor inverse; // P

  explicit LeastSquares(const Operands& call)
      : a(call[0]), is_vector(call.result(0).dim() == 1 || call.result(0).dim() < a.dim()) {
    x = as_matrix(call.result(0));
    rest = as_matrix(call[1]) - a.matmul(x);
    const auto cutoff = call.arg(2).toOptional<double>(); // singular values up to it are zero
    const bool has_cutoff = cutoff.has_value() && *cutoff > 0 && !is_of_full_rank(call);
    inverse = at::linalg_pinv(a, std::nullopt, has_cutoff ? cutoff : std::nullopt, false);
  }

  static bool is_of_full_rank(const Operands& call) {
    return !call.arg(3).isNone() && call.arg(3).toStringView() == "gels"; // which it assumes
  }
  Tensor as_matrix(const Tensor& tensor) const {
    return is_vector ? tensor.unsqueeze(-1) : tensor;
  }
  Tensor in_shape_of_result(const Tensor& matrix) const {
    return is_vector ? matrix.squeeze(-1) : matrix;
  }
};

void least_squares(JvpCall& call) {
  call.run();
  const LeastSquares problem(call);
  const Tensor& p = problem.inverse;
  Tensor moved, turned;
  if (call.has_tangent(1)) {
    moved = problem.as_matrix(call.tangent(1));
  }
  if (call.has_tangent(0)) {
    const Tensor& t = call.tangent(0);
    moved = sum_of({moved, -t.matmul(problem.x)});
    const Tensor outside = t.mH().matmul(p.mH().matmul(problem.x));
    turned = p.matmul(p.mH().matmul(t.mH().matmul(problem.rest))) + outside -
             p.matmul(problem.a.matmul(outside));
  }
  call.set_tangent(0, problem.in_shape_of_result(sum_of({p.matmul(moved), turned})));
  const Tensor& residuals = call.result(1);
  if (residuals.sym_numel() > 0) {
    const Tensor tangent = 2 * real_product(problem.rest, moved).sum(-2);
    call.set_tangent(1, tangent.reshape_symint(residuals.sym_sizes()));
  }
}

void least_squares_vjp(VjpCall& call) {
  const Tensor& by_residuals = call.cotangents()[1];
  const LeastSquares problem(call);
  const Tensor& p = problem.inverse;
  Tensor by_right, by_matrix;
  if (call.cotangents()[0].defined()) {
    const Tensor g = problem.as_matrix(call.cotangents()[0]);
    by_right = p.mH().matmul(g);
    if (call.wants(0)) {
      const Tensor outside = g - problem.a.mH().matmul(by_right);
      by_matrix = problem.rest.matmul(p.matmul(by_right).mH()) +
                  p.mH().matmul(problem.x).matmul(outside.mH());
    }
  }
  if (by_residuals.defined() && by_residuals.sym_numel() > 0) {
    c10::SymDimVector sizes(problem.rest.sym_sizes());
    sizes[sizes.size() - 2] = 1;
    by_right = sum_of({by_right, 2 * problem.rest * by_residuals.reshape_symint(sizes)});
  }
  if (!by_right.defined()) {
    return;
  }
  if (call.wants(0)) {
    call.give(0, sum_of({-by_right.matmul(problem.x.mH()), by_matrix}));
  }
  call.give(1, problem.in_shape_of_result(by_right));
}

} // namespace

void add_least_squares(Table& rules) {
  rules["linalg_pinv.atol_rtol_tensor"]
      .jvp(pseudo_inverse)
      .vjp(VJP(0, pseudo_inverse_gradient(g, x, y)))
      .along(Along::Matrices);
  rules["linalg_lstsq"]
      .jvp(least_squares)
      .vjp(
          least_squares_vjp,
          {.by = {"self", "b"},
           .of = {"solution", "residuals"},
           .saves = {"self", "b", "solution"}});
}

} // namespace torchlayers
