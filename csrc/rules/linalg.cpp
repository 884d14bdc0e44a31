// Linear algebra. The factors that an operator returns beside its result are constants to the
// layers below, who may want to differentiate: so a rule solves with its arguments anew.
#include <limits>

#include "families.h"
#include "forms.h"

namespace torchlayers {
namespace {

using at::Tensor;

// linalg_inv_ex(A, check_errors) -> (inverse, info)
void inverse(Call& call) {
  call.run();
  const Tensor& y = call.result(0);
  call.set_tangent(0, -y.matmul(call.tangent(0)).matmul(y));
}

Tensor lower_half(const Tensor& square) {
  Tensor half = square.tril();
  return half - 0.5 * at::diag_embed(half.diagonal(0, -2, -1));
}

// linalg_cholesky_ex(A, upper, check_errors) -> (L, info): L^-1 L' is the lower half of
// L^-1 A' L^-H.
void cholesky(Call& call) {
  call.run();
  const bool is_upper = call.flag(1);
  const Tensor factor = is_upper ? call.result(0).mH() : call.result(0);
  const Tensor left = at::linalg_solve_triangular(factor, call.tangent(0), /*upper=*/false);
  const Tensor both =
      at::linalg_solve_triangular(factor.mH(), left, /*upper=*/true, /*left=*/false);
  const Tensor tangent = factor.matmul(lower_half(both));
  call.set_tangent(0, is_upper ? tangent.mH() : tangent);
}

// _linalg_eigh(A, UPLO, compute_v) -> (eigenvalues, V)
void eigh(Call& call) {
  const Tensor& a = call[0];
  const Args found = call.all_with({{2, true}});
  const Tensor values = found[0].toTensor();
  const Tensor vectors = found[1].toTensor();
  const bool wants_vectors = call.flag(2);
  call.have_run({values, wants_vectors ? vectors : at::empty({0}, a.options())});
  const Tensor rotated = vectors.mH().matmul(call.tangent(0)).matmul(vectors);
  const Tensor diagonal = rotated.diagonal(0, -2, -1);
  call.set_tangent(0, rotated.is_complex() ? at::real(diagonal).clone() : diagonal.clone());
  if (wants_vectors) {
    Tensor gaps = values.unsqueeze(-2) - values.unsqueeze(-1);
    gaps.diagonal(0, -2, -1).fill_(INFINITY);
    call.set_tangent(1, vectors.matmul(rotated / gaps));
  }
}

// _linalg_solve_ex(A, B, left, check_errors) -> (X, LU, pivots, info): A X' = B' - A' X.
void solve_ex(Call& call) {
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
  const Tensor tangent = at::linalg_solve(a, right, left);
  call.set_tangent(0, is_vector ? tangent.squeeze(-1) : tangent);
}

// linalg_solve_triangular(A, B, *, upper, left, unitriangular)
void solve_triangular(Call& call) {
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

// tr(A^-1 A'). The factors that the determinants return are constants to the layers below,
// and the second derivative needs them to be none: so A is factored again. A pivot of zero is
// moved a little, which leaves the derivative of a determinant of zero at zero.
Tensor trace_of_quotient(const Tensor& a, const Tensor& tangent) {
  const auto [lu, pivots, info] = at::linalg_lu_factor_ex(a);
  const Tensor diagonal = lu.diagonal(0, -2, -1);
  const double little = a.scalar_type() == at::kFloat || a.scalar_type() == at::kComplexFloat
                            ? std::numeric_limits<float>::epsilon()
                            : std::numeric_limits<double>::epsilon();
  const Tensor moved = at::diag_embed((diagonal == 0).to(lu.scalar_type()) * little);
  const Tensor quotient = at::linalg_lu_solve(lu + moved, pivots, tangent);
  return quotient.diagonal(0, -2, -1).sum(-1);
}

// _linalg_det(A) -> (determinant, LU, pivots)
void determinant(Call& call) {
  call.run();
  call.set_tangent(0, call.result(0) * trace_of_quotient(call[0], call.tangent(0)));
}

// _linalg_slogdet(A) -> (sign, log of the absolute value, LU, pivots)
void log_determinant(Call& call) {
  call.run();
  const Tensor quotient = trace_of_quotient(call[0], call.tangent(0));
  if (!quotient.is_complex()) {
    call.set_tangent(1, quotient);
    return;
  }
  const Tensor turn = at::complex(at::zeros_like(at::real(quotient)), at::imag(quotient));
  call.set_tangent(0, call.result(0) * turn);
  call.set_tangent(1, at::real(quotient).clone());
}

} // namespace

void add_linalg(Table& rules) {
  WRITTEN("linalg_inv_ex", inverse);
  PULLS("linalg_inv_ex", {0, PULL(-y.mH().matmul(g.matmul(y.mH())))});
  WRITTEN("linalg_cholesky_ex", cholesky);
  WRITTEN("linalg_solve_triangular", solve_triangular);
  WRITTEN("_linalg_solve_ex", solve_ex);
  WRITTEN("_linalg_eigh", eigh);
  WRITTEN("_linalg_det", determinant);
  WRITTEN("_linalg_slogdet", log_determinant);
}

} // namespace torchlayers
