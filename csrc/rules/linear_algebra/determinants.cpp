// Determinants. Their derivatives are computed from the adjugate: det' = tr(adj(A) A'), and adj(A)
// is det(A) A^-1 only if A is invertible.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "core/device.h"
#include "core/skip_autograd.h"
#include "rules/families.h"
#include "rules/rule_macros.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using at::Tensor;

double epsilon_of(const Tensor& x) {
  const auto real = c10::toRealValueType(x.scalar_type());
  return real == at::kDouble ? std::numeric_limits<double>::epsilon()
                             : std::numeric_limits<float>::epsilon();
}

Tensor as_row(const Tensor& scalar) {
  return scalar.unsqueeze(-1);
}
Tensor as_matrix(const Tensor& scalar) {
  return scalar.unsqueeze(-1).unsqueeze(-1);
}

// The LU factors of a determinant's matrix. Those that the operator returns are constants to the
// layers below. They belong to the transpose if a real matrix is contiguous, which can't be
// determined for the samples of a batched one. In both cases the matrix is factored again.
struct Factors {
  Tensor lu;
  Tensor pivots;
  bool are_of_transpose = false;

  Factors(const Tensor& a, const Tensor& other, const Tensor& found_lu, const Tensor& found_pivots)
      : lu(found_lu), pivots(found_pivots) {
    if (is_differentiated_below({a, other}) || !holder_of(a).is_same(a)) {
      std::tie(lu, pivots, std::ignore) = at::linalg_lu_factor_ex(a);
    } else {
      are_of_transpose = a.is_contiguous() && !a.is_complex();
    }
  }

  // A^-1 or A^-H, times a number.
  Tensor inverse_times(const Tensor& factor, const Tensor& a, bool adjoint = false) const {
    const auto rows = a.sym_sizes().slice(0, a.dim() - 1);
    const Tensor right = at::diag_embed(as_row(factor).expand_symint(rows));
    const Tensor x =
        at::linalg_lu_solve(lu, pivots, right, /*left=*/true, adjoint && !are_of_transpose);
    return are_of_transpose && !adjoint ? x.mT() : x;
  }
};

// NOTE [Adjugates]
// A determinant is a polynomial, and has derivatives of every order at every matrix. det(A) A^-1
// gives only the first, and not at singular matrices; near those, the second and third lose all
// their digits, because large terms cancel. So:
//   - up to three by three the adjugate is written out, and is a polynomial as well;
//   - a regular matrix, whose pivots are of one order of magnitude, uses its inverse, which is
//     cheapest;
//   - any other matrix is treated by blocks, as is one whose values can't be read without waiting
//     for a device, or while a graph is captured that must be valid for other values.
// By blocks: P^T A Q = B, where B11 omits three rows and columns and is inverted, and the rest is a
// polynomial in B11^-1 and the other blocks: with S = B22 - B21 B11^-1 B12, that is
//   adj(B) = det(B11) ((B11^-1 B12; -I) adj(S) (B21 B11^-1, -I) + det(S) (B11^-1, 0; 0, 0)).
// P holds the pivots of A Q, and Q is a fixed orthogonal matrix without structure: it mixes the
// columns, so that the first n - 3 of them are independent if any n - 3 are. P and Q are constants,
// and everything that is differentiated is smooth wherever the rank is n - 3 or more. Below that,
// B11 has pivots of zero, which are shifted by about the rounding error. The derivatives up to the
// order by which the rank falls short are still right, as they are the only nonzero ones.

// Whether some pivots are so small, compared with the largest one, that the inverse is inaccurate.
Tensor has_small_pivot(const Tensor& lu, double smallest) {
  const Tensor pivots = lu.detach().diagonal(0, -2, -1).abs();
  return std::get<0>(pivots.min(-1)) <= std::get<0>(pivots.max(-1)) * smallest;
}

bool is_known_to_be_regular(const Tensor& lu, double smallest) {
  const Tensor& memory = holder_of(lu);
  if (!are_keys_of_plain(memory.key_set() - kAutocastKeys) ||
      !is_in_host_memory(*memory.unsafeGetTensorImpl()) || is_any_mode_on()) {
    return false;
  }
  const Tensor small = has_small_pivot(lu, smallest);
  const Tensor& flags = holder_of(small);
  const bool* begin = flags.const_data_ptr<bool>();
  return std::none_of(begin, begin + flags.numel(), [](bool is_small) { return is_small; });
}

Tensor adjugate_of_two(const Tensor& a) {
  const Tensor signs = 2 * at::eye(2, a.options()) - 1;
  return a.flip({-2, -1}).mT() * signs;
}

Tensor adjugate_of_three(const Tensor& a) {
  return at::linalg_cross(a.roll(-1, -2), a.roll(-2, -2)).mT();
}

// Three orthonormal columns of numbers that share no structure with any matrix.
Tensor mixing_columns(const Tensor& a) {
  const c10::SymInt n = a.sym_size(-1);
  const Tensor places = at::arange(3 * n, a.options().dtype(at::kDouble));
  const Tensor mixed = (places * places + 1).cos().view_symint({n, 3});
  return std::get<0>(at::linalg_qr(mixed)).to(a.scalar_type());
}

// Q times a matrix, where Q = Q^T = Q^-1, with determinant -1: it reflects those three directions.
Tensor reflected(const Tensor& columns, const Tensor& a) {
  return a - 2 * columns.matmul(columns.mT().matmul(a));
}

// NOTE [Adjugates], by blocks.
Tensor adjugate_by_blocks(const Tensor& a) {
  const c10::SymInt n = a.sym_size(-1);
  const c10::SymInt rest = n - 3;
  const Tensor columns = mixing_columns(a);
  const Tensor mixed = reflected(columns, a.mT()).mT();
  const auto [lu, pivots, info] = at::linalg_lu_factor_ex(mixed.detach());
  const auto [order, lower, upper] = at::lu_unpack(lu, pivots);
  const Tensor swaps =
      (pivots != at::arange(1, n + 1, pivots.options())).sum(-1).remainder(2).to(a.scalar_type());

  // Pivots of B11 that are only rounding error are shifted by its square root: there, S is as small
  // as the rounding error, divided by the pivot. L11 D is added to B11 = L11 U11.
  const Tensor sizes = lu.diagonal(0, -2, -1).abs();
  const Tensor largest = sizes.amax(-1, /*keepdim=*/true);
  const double epsilon = epsilon_of(a);
  const Tensor rounding = largest * n * (4 * epsilon);
  const Tensor little = at::where(largest > 0, largest, 1) * std::sqrt(epsilon);
  const Tensor moved = at::where(sizes <= rounding, little, 0).narrow_symint(-1, 0, rest);
  const Tensor shift =
      lower.narrow_symint(-2, 0, rest).narrow_symint(-1, 0, rest) * moved.unsqueeze(-2);

  const Tensor b = order.mT().matmul(mixed);
  const Tensor top = b.narrow_symint(-2, 0, rest);
  const Tensor bottom = b.narrow_symint(-2, rest, 3);
  const Tensor main = top.narrow_symint(-1, 0, rest) + shift;
  const Tensor inverse = std::get<0>(at::linalg_inv_ex(main));
  const Tensor right = inverse.matmul(top.narrow_symint(-1, rest, 3));
  const Tensor left = bottom.narrow_symint(-1, 0, rest).matmul(inverse);
  const Tensor corner =
      bottom.narrow_symint(-1, rest, 3) - bottom.narrow_symint(-1, 0, rest).matmul(right);
  const Tensor minors = adjugate_of_three(corner);
  const Tensor by_corner = (corner * minors.mT()).sum(-1).narrow(-1, 0, 1).unsqueeze(-1);

  const Tensor above = right.matmul(minors);
  const Tensor whole = at::cat(
      {at::cat({above.matmul(left) + by_corner * inverse, -above}, /*dim=*/-1),
       at::cat({-minors.matmul(left), minors}, /*dim=*/-1)},
      /*dim=*/-2);
  const Tensor sign = (2 * swaps - 1) * at::linalg_det(main); // Q's determinant is -1
  return reflected(columns, as_matrix(sign) * whole).matmul(order.mT());
}

// y is the determinant. found_lu and found_pivots are the factors that it was computed from.
Tensor adjugate(
    const Tensor& a,
    const Tensor& other,
    const Tensor& y,
    const Tensor& found_lu,
    const Tensor& found_pivots) {
  const c10::SymInt n = a.sym_size(-1);
  if (n == 0) {
    return a;
  }
  if (n == 1) {
    return at::ones_like(a);
  }
  if (n == 2) {
    return adjugate_of_two(a);
  }
  if (n == 3) {
    return adjugate_of_three(a);
  }
  if (!is_differentiated_below({a, other})) {
    // Pivots may be small here: LU gives the adjugate of a matrix that differs from A by rounding.
    return is_known_to_be_regular(found_lu, 16 * epsilon_of(a))
               ? Factors(a, other, found_lu, found_pivots).inverse_times(y, a)
               : adjugate_by_blocks(a);
  }
  return is_known_to_be_regular(found_lu, std::cbrt(epsilon_of(a)))
             ? as_matrix(y) * std::get<0>(at::linalg_inv_ex(a))
             : adjugate_by_blocks(a);
}

// _linalg_det(A) -> (determinant, LU, pivots)
void determinant(JvpCall& call) {
  call.run();
  const Tensor& t = call.tangent(0);
  const Tensor minors = adjugate(call[0], t, call.result(0), call.result(1), call.result(2));
  call.set_tangent(0, (minors.mT() * t).sum({-2, -1}));
}

Tensor determinant_gradient(
    const Tensor& g, const Tensor& a, const Tensor& y, const Tensor& lu, const Tensor& pivots) {
  return as_matrix(g) * adjugate(a, g, y, lu, pivots).mH();
}

// _linalg_slogdet(A) -> (sign, log of the absolute value, LU, pivots). The logarithm's derivative
// is infinite or nan where the determinant is zero.
void log_determinant(JvpCall& call) {
  call.run();
  const Tensor& t = call.tangent(0);
  const Factors factors(call[0], t, call.result(2), call.result(3));
  const Tensor solved =
      at::linalg_lu_solve(factors.lu, factors.pivots, factors.are_of_transpose ? t.mT() : t);
  const Tensor trace = solved.diagonal(0, -2, -1).sum(-1);
  if (!trace.is_complex()) {
    call.set_tangent(1, trace);
    return;
  }
  const Tensor turn = at::complex(at::zeros_like(at::real(trace)), at::imag(trace));
  call.set_tangent(0, call.result(0) * turn);
  call.set_tangent(1, at::real(trace).clone());
}

void log_determinant_vjp(VjpCall& call) {
  const Tensor& by_sign = call.cotangents()[0];
  Tensor factor = call.cotangents()[1];
  const Tensor& sign = call.result(0);
  if (by_sign.defined() && sign.is_complex()) {
    const Tensor turn = at::imag(by_sign * sign.conj());
    factor = at::complex(factor.defined() ? factor : at::zeros_like(turn), turn);
  }
  if (factor.defined()) {
    const Factors factors(call[0], factor, call.result(2), call.result(3));
    call.give(0, factors.inverse_times(factor, call[0], /*adjoint=*/true));
  }
}

} // namespace

void add_determinants(Table& rules) {
  rules["_linalg_det"]
      .jvp(determinant)
      .vjp(VJP(0, determinant_gradient(g, x, y, c.result(1), c.result(2))))
      .along(Along::Matrices);
  rules["_linalg_slogdet"]
      .jvp(log_determinant)
      .vjp(
          log_determinant_vjp,
          {.by = {"A"}, .of = {"sign", "logabsdet"}, .saves = {"A", "sign", "LU", "pivots"}})
      .along(Along::Matrices);
}

} // namespace torchlayers
