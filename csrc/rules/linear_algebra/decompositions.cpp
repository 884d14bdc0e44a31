// Triangular decompositions: Cholesky, LU and QR, and the Householder reflections that form Q.
#include "core/errors.h"
#include "rules/families.h"
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

// matrix triangle^-1 and triangle^-1 matrix.
Tensor over(const Tensor& matrix, const Tensor& triangle, bool is_upper) {
  return at::linalg_solve_triangular(triangle, matrix, is_upper, /*left=*/false);
}
Tensor under(const Tensor& triangle, const Tensor& matrix, bool is_upper, bool has_ones = false) {
  return at::linalg_solve_triangular(triangle, matrix, is_upper, /*left=*/true, has_ones);
}

// linalg_cholesky_ex(A, upper, check_errors) -> (L, info), cholesky(A, upper) -> L: L^-1 L' is the
// lower half of L^-1 A' L^-H.
void cholesky(JvpCall& call) {
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
  const Tensor hermitian = 0.5 * (lower + lower.tril(-1).mH()); // as the input matrix is
  const Tensor left = under(factor.mH(), hermitian, /*is_upper=*/true);
  return over(left, factor, /*is_upper=*/false);
}

Tensor with_columns(const Tensor& matrix, const c10::SymInt& count) {
  const c10::SymInt missing = count - matrix.sym_size(-1);
  return missing > 0 ? at::constant_pad_nd_symint(matrix, {0, missing}) : matrix;
}

// The rows or columns of a matrix before a position, and from there on.
Tensor head(const Tensor& matrix, int64_t dim, const c10::SymInt& count) {
  return matrix.narrow_symint(dim, 0, count);
}
Tensor tail(const Tensor& matrix, int64_t dim, const c10::SymInt& count) {
  return matrix.narrow_symint(dim, count, matrix.sym_size(dim) - count);
}

// The factors of P^T A = L U, or their tangents. Either may extend beyond the square part that they
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
  // The number of U's rows that are divided by. The last pivot is not, unless L has rows below the
  // square: matrices of rank n - 1, whose last pivot is zero, have a derivative.
  c10::SymInt divided_by() const {
    return is_tall() || common() == 0 ? common() : common() - 1;
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

// Packs both into one matrix: L has only elements below the diagonal, and U the others.
Tensor in_one_matrix(const Triangles& parts) {
  const c10::SymInt n = parts.common();
  const Tensor square = parts.square_lower() + parts.square_upper();
  if (parts.is_wide()) {
    return at::cat({square, tail(parts.upper, -1, n)}, /*dim=*/-1);
  }
  return parts.is_tall() ? at::cat({square, tail(parts.lower, -2, n)}, /*dim=*/-2) : square;
}

// matrix U^-1 for the first columns; the others are zero.
Tensor over_first(const Tensor& matrix, const Tensor& u, const c10::SymInt& count, bool is_upper) {
  const Tensor square = head(head(u, -2, count), -1, count);
  return with_columns(over(head(matrix, -1, count), square, is_upper), matrix.sym_size(-1));
}

// L^-1 L' is the part below the diagonal of C = L^-1 P^T A' U^-1, and U' U^-1 the rest.
Triangles lu_tangents(const Tensor& t, const Triangles& factors) {
  const c10::SymInt n = factors.common();
  const Tensor l = factors.square_lower();
  const Tensor u = factors.square_upper();
  const Tensor solved = under(l, head(t, -2, n), /*is_upper=*/false, /*has_ones=*/true);
  const Tensor below =
      over_first(head(solved, -1, n), u, factors.divided_by(), /*is_upper=*/true).tril(-1);
  Tensor lower = l.matmul(below);
  const Tensor upper = (solved - below.matmul(factors.upper)).triu();
  if (factors.is_tall()) {
    const Tensor rest = tail(t, -2, n) - tail(factors.lower, -2, n).matmul(upper);
    lower = at::cat({lower, over(rest, u, /*is_upper=*/true)}, /*dim=*/-2);
  }
  return {lower, upper};
}

Tensor lu_gradient(const Triangles& g, const Triangles& factors) {
  const c10::SymInt n = factors.common();
  const Tensor l = factors.square_lower().mH();
  const Tensor u = factors.square_upper().mH();
  const Tensor by_upper = g.square_upper().triu();
  Tensor below = l.matmul(g.square_lower()) - by_upper.matmul(u);
  if (factors.is_wide()) {
    below = below - tail(g.upper, -1, n).matmul(tail(factors.upper, -1, n).mH());
  }
  Tensor inner = below.tril(-1);
  if (factors.is_tall()) {
    inner = inner - tail(factors.lower, -2, n).mH().matmul(tail(g.lower, -2, n)).triu();
  }
  Tensor gradient = by_upper + over_first(inner, u, factors.divided_by(), /*is_upper=*/false);
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
void lu_factor(JvpCall& call) {
  call.run();
  const Tensor& both = call.result(0);
  const Tensor& pivots = call.result(1);
  const Tensor t =
      call.flag(1) ? permutation(both, pivots).mT().matmul(call.tangent(0)) : call.tangent(0);
  const Triangles tangents = lu_tangents(t, unpacked(both, pivots));
  call.set_tangent(0, in_one_matrix({tangents.lower.tril(-1), tangents.upper.triu()}));
}

// The products omit elements above the cotangent's diagonal where they compute L's part, and those
// below it where they compute U's.
Tensor lu_factor_gradient(const Tensor& g, const Tensor& both, const Tensor& pivots, bool pivoted) {
  const auto [order, lower, upper] =
      at::lu_unpack(both, pivots, /*unpack_data=*/true, /*unpack_pivots=*/pivoted);
  const c10::SymInt n = lower.sym_size(-1);
  const Tensor gradient = lu_gradient({head(g, -1, n), head(g, -2, n)}, {lower, upper});
  return pivoted ? order.matmul(gradient) : gradient;
}

// linalg_lu(A, *, pivot) -> (P, L, U)
void lu(JvpCall& call) {
  call.run();
  const Tensor t = call.flag(1) ? call.result(0).mT().matmul(call.tangent(0)) : call.tangent(0);
  const Triangles tangents = lu_tangents(t, {call.result(1), call.result(2)});
  call.set_tangent(1, tangents.lower);
  call.set_tangent(2, tangents.upper);
}

void lu_vjp(VjpCall& call) {
  const Triangles factors{call.result(1), call.result(2)};
  const auto& by = call.cotangents();
  const Triangles g{
      by[0].defined() ? by[0] : at::zeros_like(factors.lower),
      by[1].defined() ? by[1] : at::zeros_like(factors.upper)};
  const Tensor gradient = lu_gradient(g, factors);
  call.give(0, call.flag(1) ? call.result(0).matmul(gradient) : gradient);
}

// lu_unpack(LU, pivots, unpack_data, unpack_pivots) -> (P, L, U)
void lu_unpack(JvpCall& call) {
  call.run();
  if (call.flag(2)) {
    const Triangles tangents = unpacked(call.tangent(0), call[1]);
    call.set_tangent(1, tangents.lower.tril(-1));
    call.set_tangent(2, tangents.upper);
  }
}

void lu_unpack_vjp(VjpCall& call) {
  const auto& by = call.cotangents();
  const c10::SymIntArrayRef sizes = call.sizes_of(0);
  const c10::SymInt rows = sizes[sizes.size() - 2];
  const c10::SymInt columns = sizes[sizes.size() - 1];
  const Tensor below = by[0].defined() ? by[0].tril(-1) : Tensor();
  const Tensor above = by[1].defined() ? by[1].triu() : Tensor();
  if (below.defined() && above.defined()) {
    call.give(0, in_one_matrix({below, above}));
  } else if (below.defined()) {
    const bool is_wide = columns > rows;
    call.give(0, is_wide ? at::constant_pad_nd_symint(below, {0, columns - rows}) : below);
  } else {
    const bool is_tall = rows > columns;
    call.give(0, is_tall ? at::constant_pad_nd_symint(above, {0, 0, 0, rows - columns}) : above);
  }
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
    const Tensor square = over_first(left, r, rows_divided_by(r), /*is_upper=*/true);
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
        over_first(stretch - square, r.mH(), rows_divided_by(r), /*is_upper=*/false);
    call.give(0, q.matmul(sum_of({with_columns(inner, columns), by_r})));
  } else {
    call.give(0, over(sum_of({q.matmul(stretch), by_q}), r.mH(), /*is_upper=*/false));
  }
}

// The product of reflections I - tau v v^H is I - V T V^H, where the v are V's columns: ones on the
// diagonal, and the input below. T is (I + D S)^-1 D, upper triangular, where D is diagonal with
// the tau and S is the part of V^H V above the diagonal (Joffrain, Low, Quintana-Orti, van de Geijn
// and Van Zee, "Accumulating Householder transformations, revisited", 2006; here without inverting
// D, because a tau may be zero).
class Reflections {
 public:
  Reflections(const Tensor& input, const Tensor& tau) : tau_(tau.unsqueeze(-1)) {
    const c10::SymInt count = tau.sym_size(-1);
    vectors_ = below_diagonal(input) + at::eye_symint(input.sym_size(-2), count, input.options());
    above_ = vectors_.mH().matmul(vectors_).triu(1);
    factor_ = solve(at::diag_embed(tau));
  }

  // The part of the input, or of its tangent, that holds the vectors.
  Tensor below_diagonal(const Tensor& input) const {
    return head(input, -1, tau_.sym_size(-2)).tril(-1);
  }

  // The tangent of the product, or of its adjoint, times `matrix`.
  Tensor tangent(
      const Tensor& by_input, const Tensor& by_tau, const Tensor& matrix, bool adjoint) const {
    const auto turned = [&](const Tensor& factor) { return adjoint ? factor.mH() : factor; };
    const Tensor seen = vectors_.mH().matmul(matrix);
    Tensor inner, outer;
    if (by_tau.defined()) {
      inner = turned(solve(by_tau.unsqueeze(-1) * without_above())).matmul(seen);
    }
    if (by_input.defined()) {
      const Tensor t = below_diagonal(by_input);
      const Tensor half = vectors_.mH().matmul(t);
      const Tensor above = (half + half.mH()).triu(1);
      const Tensor change = turned(factor_.matmul(above).matmul(factor_)).matmul(seen);
      inner = sum_of({inner, turned(factor_).matmul(t.mH().matmul(matrix)) - change});
      outer = t.matmul(turned(factor_).matmul(seen));
    }
    return -sum_of({vectors_.matmul(inner), outer});
  }

  // The gradients by the input's vectors and by tau. The gradient by the product is left times
  // right^H.
  Tensor by_vectors(const Tensor& left, const Tensor& right) const {
    const Tensor seen_left = left.mH().matmul(vectors_);
    const Tensor seen_right = right.mH().matmul(vectors_);
    const Tensor by_factor = seen_left.mH().matmul(seen_right);
    const Tensor by_above = factor_.mH().matmul(by_factor).matmul(factor_.mH()).triu(1);
    return (vectors_.matmul(by_above + by_above.mH()) -
            left.matmul(seen_right.matmul(factor_.mH())) - right.matmul(seen_left.matmul(factor_)))
        .tril(-1);
  }
  Tensor by_tau(const Tensor& left, const Tensor& right) const {
    const Tensor by_factor =
        vectors_.mH().matmul(left).matmul(right.mH().matmul(vectors_)); // negated
    const Tensor by_inner =
        under((tau_ * above_).mH(), by_factor, /*is_upper=*/false, /*has_ones=*/true);
    return -(by_inner * without_above().conj()).sum(-1);
  }

 private:
  // (I + D S)^-1 matrix
  Tensor solve(const Tensor& matrix) const {
    return under(tau_ * above_, matrix, /*is_upper=*/true, /*has_ones=*/true);
  }
  // I - S T
  Tensor without_above() const {
    return at::eye_symint(tau_.sym_size(-2), above_.options()) - above_.matmul(factor_);
  }

  Tensor tau_; // a column
  Tensor vectors_;
  Tensor above_;
  Tensor factor_;
};

void give_reflections(
    VjpCall& call, const Reflections& reflections, const Tensor& left, const Tensor& right) {
  if (call.wants(0)) {
    const Tensor gradient = reflections.by_vectors(left, right);
    const c10::SymIntArrayRef sizes = call.sizes_of(0);
    const c10::SymInt others = sizes[sizes.size() - 1] - gradient.sym_size(-1);
    call.give(0, others > 0 ? at::constant_pad_nd_symint(gradient, {0, others}) : gradient);
  }
  if (call.wants(1)) {
    call.give(1, reflections.by_tau(left, right));
  }
}

Tensor first_columns_of_one(const Operands& call) {
  return at::eye_symint(call[0].sym_size(-2), call[0].sym_size(-1), call[0].options());
}

// linalg_householder_product(input, tau): the first columns of the product, as many as the input
// has.
void householder_product(JvpCall& call) {
  call.run();
  const Reflections reflections(call[0], call[1]);
  call.set_tangent(
      0,
      reflections.tangent(
          tangent_or_none(call, 0),
          tangent_or_none(call, 1),
          first_columns_of_one(call),
          /*adjoint=*/false));
}

void householder_product_vjp(VjpCall& call) {
  const Reflections reflections(call[0], call[1]);
  give_reflections(call, reflections, call.cotangents()[0], first_columns_of_one(call));
}

// ormqr(input, tau, other, left, transpose): the product of reflections, or its adjoint, times the
// matrix `other`, from the left or the right.
void multiply_by_reflections(JvpCall& call) {
  call.run();
  const bool left = call.flag(3);
  Tensor sum;
  if (call.has_tangent(2)) {
    sum = call.with({{2, call.tangent(2)}});
  }
  if (call.has_tangent(0) || call.has_tangent(1)) {
    const Tensor tangent = Reflections(call[0], call[1])
                               .tangent(
                                   tangent_or_none(call, 0),
                                   tangent_or_none(call, 1),
                                   left ? call[2] : call[2].mH(),
                                   /*adjoint=*/call.flag(4) == left);
    sum = sum_of({sum, left ? tangent : tangent.mH()});
  }
  call.set_tangent(0, sum);
}

void multiply_by_reflections_vjp(VjpCall& call) {
  const Tensor& g = call.cotangents()[0];
  const bool left = call.flag(3);
  const bool adjoint = call.flag(4);
  if (call.wants(0) || call.wants(1)) {
    const Tensor gradient = left ? g : g.mH();
    const Tensor other = left ? call[2] : call[2].mH();
    const bool in_order = adjoint != left;
    give_reflections(
        call,
        Reflections(call[0], call[1]),
        in_order ? gradient : other,
        in_order ? other : gradient);
  }
  if (call.wants(2)) {
    call.give(2, at::ormqr(call[0], call[1], g, left, !adjoint));
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
  rules["linalg_lu_factor_ex"]
      .jvp(lu_factor)
      .vjp(VJP(0, lu_factor_gradient(g, c.result(0), c.result(1), c.flag(1))))
      .along(Along::Matrices);
  rules["linalg_lu"]
      .jvp(lu)
      .vjp(lu_vjp, {.by = {"A"}, .of = {"L", "U"}, .saves = {"P", "L", "U"}})
      .along(Along::Matrices);
  rules["lu_unpack"].jvp(lu_unpack).vjp(lu_unpack_vjp, {.by = {"LU_data"}, .of = {"L", "U"}});
  rules["linalg_qr"]
      .jvp(qr)
      .vjp(qr_vjp, {.by = {"A"}, .of = {"Q", "R"}, .saves = {"Q", "R"}})
      .along(Along::Matrices);
  for (const char* name : {"linalg_ldl_factor_ex", "geqrf"}) {
    rules[name].along(Along::Matrices);
  }
  rules["linalg_householder_product"]
      .jvp(householder_product)
      .vjp(householder_product_vjp, {.by = {"input", "tau"}, .saves = {"input", "tau"}});
  rules["ormqr"]
      .jvp(multiply_by_reflections)
      .vjp(
          multiply_by_reflections_vjp,
          {.by = {"self", "input2", "input3"}, .saves = {"self", "input2", "input3"}});
}

} // namespace torchlayers
