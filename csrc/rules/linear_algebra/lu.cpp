// LU decompositions: packed into one matrix or as two, and unpacking.
#include <tuple>

#include "rules/families.h"
#include "rules/linear_algebra/triangles.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

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

// L^-1 L' is the part below the diagonal of C = L^-1 P^T A' U^-1, and U' U^-1 the rest.
Triangles lu_tangents(const Tensor& t, const Triangles& factors) {
  const c10::SymInt n = factors.common();
  const Tensor l = factors.square_lower();
  const Tensor u = factors.square_upper();
  const Tensor solved = inverse_times(l, head(t, -2, n), /*is_upper=*/false, /*has_ones=*/true);
  const Tensor below =
      times_inverse_of_first(head(solved, -1, n), u, factors.divided_by(), /*is_upper=*/true)
          .tril(-1);
  Tensor lower = l.matmul(below);
  const Tensor upper = (solved - below.matmul(factors.upper)).triu();
  if (factors.is_tall()) {
    const Tensor rest = tail(t, -2, n) - tail(factors.lower, -2, n).matmul(upper);
    lower = at::cat({lower, times_inverse(rest, u, /*is_upper=*/true)}, /*dim=*/-2);
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
  Tensor gradient =
      by_upper + times_inverse_of_first(inner, u, factors.divided_by(), /*is_upper=*/false);
  if (factors.is_wide()) {
    gradient = at::cat({gradient, tail(g.upper, -1, n)}, /*dim=*/-1);
  }
  gradient = inverse_times(l, gradient, /*is_upper=*/true, /*has_ones=*/true);
  if (factors.is_tall()) {
    const Tensor rest = times_inverse(tail(g.lower, -2, n), u, /*is_upper=*/false);
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

} // namespace

void add_lu(Table& rules) {
  rules["linalg_lu_factor_ex"]
      .jvp(lu_factor)
      .vjp(VJP(0, lu_factor_gradient(g, c.result(0), c.result(1), c.flag(1))))
      .along(Along::Matrices);
  rules["linalg_lu"]
      .jvp(lu)
      .vjp(lu_vjp, {.by = {"A"}, .of = {"L", "U"}, .saves = {"P", "L", "U"}})
      .along(Along::Matrices);
  rules["lu_unpack"].jvp(lu_unpack).vjp(lu_unpack_vjp, {.by = {"LU_data"}, .of = {"L", "U"}});
}

} // namespace torchlayers
