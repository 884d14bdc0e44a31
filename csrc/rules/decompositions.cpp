// Triangular decompositions: Cholesky, LU and QR.
#include "../errors.h"
#include "families.h"
#include "forms.h"

namespace torchlayers {
namespace {

using at::Tensor;
using Places = std::vector<size_t>;

Tensor halve_diagonal(Tensor triangle) {
  triangle.diagonal(0, -2, -1).mul_(0.5);
  return triangle;
}

Tensor lower_half(const Tensor& square) {
  return halve_diagonal(square.tril());
}

Tensor upper_half(const Tensor& square) {
  return halve_diagonal(square.triu());
}

// matrix triangle^-1 and triangle^-1 matrix.
Tensor over(const Tensor& matrix, const Tensor& triangle, bool is_upper) {
  return at::linalg_solve_triangular(triangle, matrix, is_upper, /*left=*/false);
}
Tensor under(const Tensor& triangle, const Tensor& matrix, bool is_upper, bool has_ones = false) {
  return at::linalg_solve_triangular(triangle, matrix, is_upper, /*left=*/true, has_ones);
}

// linalg_cholesky_ex(A, upper, check_errors) -> (L, info), cholesky(A, upper) -> L: L^-1 L' is the
// lower half of L^-1 A' L^-H.
void cholesky(Call& call) {
  call.run();
  const bool is_upper = call.flag(1);
  const Tensor factor = is_upper ? call.result(0).mH() : call.result(0);
  const Tensor left = under(factor, call.tangent(0), /*is_upper=*/false);
  const Tensor tangent = factor.matmul(lower_half(over(left, factor.mH(), /*is_upper=*/true)));
  call.set_tangent(0, is_upper ? tangent.mH() : tangent);
}

Tensor cholesky_gradient(const Tensor& g, const Tensor& result, bool is_upper) {
  const Tensor factor = is_upper ? result.mH() : result;
  const Tensor lower = factor.mH().matmul(is_upper ? g.mH() : g).tril();
  const Tensor hermitian = 0.5 * (lower + lower.tril(-1).mH()); // as the matrix is
  const Tensor left = under(factor.mH(), hermitian, /*is_upper=*/true);
  return over(left, factor, /*is_upper=*/false);
}

// The rows or columns of a matrix up to a place, and from there.
Tensor head(const Tensor& matrix, int64_t dim, const c10::SymInt& count) {
  return matrix.narrow_symint(dim, 0, count);
}
Tensor tail(const Tensor& matrix, int64_t dim, const c10::SymInt& count) {
  return matrix.narrow_symint(dim, count, matrix.sym_size(dim) - count);
}

// The factors of P^T A = L U, or what they change by. Either may go on beyond the square that they
// have in common.
struct Triangles {
  Tensor lower;
  Tensor upper;

  c10::SymInt rows() const {
    return lower.sym_size(-2);
  }
  c10::SymInt columns() const {
    return upper.sym_size(-1);
  }
  c10::SymInt common() const {
    return lower.sym_size(-1);
  }
  bool is_tall() const {
    return rows() > common();
  }
  bool is_wide() const {
    return columns() > common();
  }
  Tensor square_lower() const {
    return is_tall() ? head(lower, -2, common()) : lower;
  }
  Tensor square_upper() const {
    return is_wide() ? head(upper, -1, common()) : upper;
  }
};

Triangles unpacked(const Tensor& packed, const Tensor& pivots) {
  const auto [none, lower, upper] = at::lu_unpack(packed, pivots, true, /*unpack_pivots=*/false);
  return {lower, upper};
}

// Both in one matrix, L without its ones.
Tensor packed(const Tensor& lower, const Tensor& upper) {
  Tensor below = lower.tril(-1);
  Tensor above = upper.triu();
  const c10::SymInt wider = upper.sym_size(-1) - lower.sym_size(-1);
  const c10::SymInt taller = lower.sym_size(-2) - upper.sym_size(-2);
  if (wider > 0) {
    below = at::constant_pad_nd_symint(below, {0, wider});
  }
  if (taller > 0) {
    above = at::constant_pad_nd_symint(above, {0, 0, 0, taller});
  }
  return below + above;
}

// With C = L^-1 P^T A' U^-1: L^-1 L' is what is below C's diagonal, U' U^-1 the rest.
Triangles lu_tangents(const Tensor& t, const Triangles& factors) {
  const c10::SymInt n = factors.common();
  const Tensor l = factors.square_lower();
  const Tensor u = factors.square_upper();
  const Tensor solved = under(l, head(t, -2, n), /*is_upper=*/false, /*has_ones=*/true);
  const Tensor inner = over(head(solved, -1, n), u, /*is_upper=*/true);
  const Tensor below = inner.tril(-1);
  Tensor lower = l.matmul(below);
  Tensor upper = inner.triu().matmul(u);
  if (factors.is_tall()) {
    const Tensor rest = tail(t, -2, n) - tail(factors.lower, -2, n).matmul(upper);
    lower = at::cat({lower, over(rest, u, /*is_upper=*/true)}, /*dim=*/-2);
  }
  if (factors.is_wide()) {
    const Tensor rest = tail(solved, -1, n) - below.matmul(tail(factors.upper, -1, n));
    upper = at::cat({upper, rest}, /*dim=*/-1);
  }
  return {lower, upper};
}

Tensor lu_gradient(const Triangles& g, const Triangles& factors) {
  const c10::SymInt n = factors.common();
  const Tensor l = factors.square_lower().mH();
  const Tensor u = factors.square_upper().mH();
  Tensor below = l.matmul(g.square_lower());
  Tensor above = g.square_upper().matmul(u);
  if (factors.is_tall()) {
    above = above - tail(factors.lower, -2, n).mH().matmul(tail(g.lower, -2, n));
  }
  if (factors.is_wide()) {
    below = below - tail(g.upper, -1, n).matmul(tail(factors.upper, -1, n).mH());
  }
  Tensor gradient = over(below.tril(-1) + above.triu(), u, /*is_upper=*/false);
  if (factors.is_wide()) {
    gradient = at::cat({gradient, tail(g.upper, -1, n)}, /*dim=*/-1);
  }
  gradient = under(l, gradient, /*is_upper=*/true, /*has_ones=*/true);
  if (factors.is_tall()) {
    const Tensor rest = over(tail(g.lower, -2, n), u, /*is_upper=*/false);
    gradient = at::cat({gradient, rest}, /*dim=*/-2);
  }
  return gradient;
}

Tensor permutation(const Tensor& packed, const Tensor& pivots) {
  return std::get<0>(at::lu_unpack(packed, pivots, /*unpack_data=*/false));
}

// linalg_lu_factor_ex(A, *, pivot, check_errors) -> (LU, pivots, info)
void lu_factor(Call& call) {
  call.run();
  const Tensor& both = call.result(0);
  const Tensor& pivots = call.result(1);
  const Tensor t =
      call.flag(1) ? permutation(both, pivots).mT().matmul(call.tangent(0)) : call.tangent(0);
  const Triangles tangents = lu_tangents(t, unpacked(both, pivots));
  call.set_tangent(0, packed(tangents.lower, tangents.upper));
}

Tensor lu_factor_gradient(const Tensor& g, const Tensor& both, const Tensor& pivots, bool pivoted) {
  const Triangles by = unpacked(g, pivots);
  const Tensor gradient = lu_gradient({by.lower.tril(-1), by.upper}, unpacked(both, pivots));
  return pivoted ? permutation(both, pivots).matmul(gradient) : gradient;
}

// linalg_lu(A, *, pivot) -> (P, L, U)
void lu(Call& call) {
  call.run();
  const Tensor t = call.flag(1) ? call.result(0).mT().matmul(call.tangent(0)) : call.tangent(0);
  const Triangles tangents = lu_tangents(t, {call.result(1), call.result(2)});
  call.set_tangent(1, tangents.lower);
  call.set_tangent(2, tangents.upper);
}

void pull_lu(Pullback& call) {
  const Triangles factors{call.result(1), call.result(2)};
  const auto& by = call.cotangents();
  const Triangles g{
      by[0].defined() ? by[0] : at::zeros_like(factors.lower),
      by[1].defined() ? by[1] : at::zeros_like(factors.upper)};
  const Tensor gradient = lu_gradient(g, factors);
  call.give(0, call.flag(1) ? call.result(0).matmul(gradient) : gradient);
}

// lu_unpack(LU, pivots, unpack_data, unpack_pivots) -> (P, L, U)
void lu_unpack(Call& call) {
  call.run();
  if (call.flag(2)) {
    const Triangles tangents = unpacked(call.tangent(0), call[1]);
    call.set_tangent(1, tangents.lower.tril(-1));
    call.set_tangent(2, tangents.upper);
  }
}

void pull_lu_unpack(Pullback& call) {
  const auto& by = call.cotangents();
  const c10::SymIntArrayRef sizes = call.sizes_of(0);
  const c10::SymInt rows = sizes[sizes.size() - 2];
  const c10::SymInt columns = sizes[sizes.size() - 1];
  Tensor below, above;
  if (by[0].defined()) {
    below = by[0].tril(-1);
    below = columns > rows ? at::constant_pad_nd_symint(below, {0, columns - rows}) : below;
  }
  if (by[1].defined()) {
    above = by[1].triu();
    above = rows > columns ? at::constant_pad_nd_symint(above, {0, 0, 0, rows - columns}) : above;
  }
  call.give(0, sum_of({below, above}));
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
        "columns, whose last columns of Q are any: use mode='reduced'.");
  }
}

void qr(Call& call) {
  call.run();
  check_qr(call);
  const Tensor t = call.tangent(0);
  const Tensor& q = call.result(0);
  const Tensor& r = call.result(1);
  if (r.sym_size(-1) > r.sym_size(-2)) {
    const Tensor inner = q.mH().matmul(t);
    const c10::SymInt rows = r.sym_size(-2);
    const Tensor square = over(head(inner, -1, rows), head(r, -1, rows), /*is_upper=*/true);
    const Tensor turn = square - upper_half(square + square.mH());
    call.set_tangent(0, q.matmul(turn));
    call.set_tangent(1, inner - turn.matmul(r));
  } else {
    const Tensor moved = over(t, r, /*is_upper=*/true);
    const Tensor square = q.mH().matmul(moved);
    const Tensor stretch = upper_half(square + square.mH());
    call.set_tangent(0, moved - q.matmul(stretch));
    call.set_tangent(1, stretch.matmul(r));
  }
}

void pull_qr(Pullback& call) {
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
    square = sum_of({square, -q.mH().matmul(by_q)});
  }
  const Tensor half = upper_half(square);
  const Tensor stretch = half + half.mH();
  const c10::SymInt rows = r.sym_size(-2);
  const c10::SymInt columns = r.sym_size(-1);
  if (columns > rows) {
    Tensor inner = over(stretch - square, head(r, -1, rows).mH(), /*is_upper=*/false);
    inner = sum_of({at::constant_pad_nd_symint(inner, {0, columns - rows}), by_r});
    call.give(0, q.matmul(inner));
  } else {
    call.give(0, over(sum_of({q.matmul(stretch), by_q}), r.mH(), /*is_upper=*/false));
  }
}

} // namespace

void add_decompositions(Table& rules) {
  WRITTEN("linalg_cholesky_ex", cholesky);
  PULLS("linalg_cholesky_ex", {0, PULL(cholesky_gradient(g, y, c.flag(1)))});
  WRITTEN("cholesky", cholesky);
  PULLS("cholesky", {0, PULL(cholesky_gradient(g, y, c.flag(1)))});
  WRITTEN("linalg_lu_factor_ex", lu_factor);
  PULLS(
      "linalg_lu_factor_ex", {0, PULL(lu_factor_gradient(g, c.result(0), c.result(1), c.flag(1)))});
  WRITTEN("linalg_lu", lu);
  rules.add_pull(
      "linalg_lu", std::make_unique<AtOnce>(Places{0}, Places{1, 2}, Reads{0, 0b111}, pull_lu));
  WRITTEN("lu_unpack", lu_unpack);
  rules.add_pull(
      "lu_unpack", std::make_unique<AtOnce>(Places{0}, Places{1, 2}, Reads(), pull_lu_unpack));
  WRITTEN("linalg_qr", qr);
  rules.add_pull(
      "linalg_qr", std::make_unique<AtOnce>(Places{0}, Places{0, 1}, Reads{0, 0b11}, pull_qr));
}

} // namespace torchlayers
