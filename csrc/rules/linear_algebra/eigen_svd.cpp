// Eigenvalues and singular values, with their vectors. Where two values are equal, the derivative
// of their vectors is infinite.
#include <ATen/TensorSubclassLikeUtils.h>

#include <cmath>
#include <limits>

#include "core/errors.h"
#include "core/stack.h"
#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

double relative_rounding(const Tensor& values) {
  const auto real = c10::toRealValueType(values.scalar_type());
  return real == at::kDouble ? std::numeric_limits<double>::epsilon()
                             : std::numeric_limits<float>::epsilon();
}

// The largest magnitude of a value, or of a gap between two values, that may be rounding error.
Tensor smallest_of(const Tensor& values) {
  return values.abs().amax(-1, /*keepdim=*/true) * values.sym_size(-1) * relative_rounding(values);
}

// The divisor of a matrix. Where it is only rounding error, the quotient is nan, rather than an
// arbitrary finite number. Not where the matrix is zero, or else known not to be noise: a function
// that does not use the vectors of close values has a derivative. Exactly equal values give nan in
// any case, because a function that uses them times zero can't be distinguished from one that
// doesn't.
Tensor unless_rounding(const Tensor& divisor, const Tensor& is_rounding, const Tensor& is_noise) {
  return at::where(is_rounding.logical_and(is_noise), NAN, divisor);
}

// matrix[i][j] / (values[j] - values[i]), or by the difference of their squares, computed such that
// it is exact where they are close; zero on the diagonal.
Tensor over_gaps(
    const Tensor& matrix,
    const Tensor& values,
    bool of_squares = false,
    const Tensor& is_noise = Tensor()) {
  if (values.sym_size(-1) == 0) {
    return matrix;
  }
  const Tensor row = values.unsqueeze(-2);
  const Tensor column = values.unsqueeze(-1);
  const Tensor gaps = row - column;
  const Tensor is_rounding = gaps.abs() <= smallest_of(values).unsqueeze(-1);
  Tensor divisor = unless_rounding(
      of_squares ? gaps * (row + column) : gaps,
      is_rounding,
      is_noise.defined() ? is_noise : matrix != 0);
  divisor.diagonal(0, -2, -1).fill_(INFINITY);
  return matrix / divisor;
}

Tensor conjugate_over_gaps(const Tensor& matrix, const Tensor& values) {
  return over_gaps(matrix.conj(), values).conj();
}

// Each column over its singular value.
Tensor over_values(const Tensor& matrix, const Tensor& values) {
  if (values.sym_size(-1) == 0) {
    return matrix;
  }
  const Tensor row = values.unsqueeze(-2);
  return matrix / unless_rounding(row, row <= smallest_of(values).unsqueeze(-2), matrix != 0);
}

Tensor diagonal_of(const Tensor& matrix) {
  return matrix.diagonal(0, -2, -1);
}

Tensor real_diagonal(const Tensor& matrix) {
  return matrix.is_complex() ? at::real(diagonal_of(matrix)) : diagonal_of(matrix);
}

Tensor with_diagonal(const Tensor& matrix, const Tensor& diagonal) {
  return diagonal.defined() ? matrix + at::diag_embed(diagonal) : matrix;
}

// Complex vectors are determined up to a phase, by which they can't be differentiated. Whether a
// result depends on it can only be seen from numbers, which exist only below the last layer, and
// not in a graph.
void check_phase(const Tensor& derivative, const char* name) {
  if (!derivative.is_complex() || !mirror().empty() || at::isTensorSubclassLike(derivative)) {
    return;
  }
  const Tensor by_phase = at::imag(derivative);
  if (!at::allclose(by_phase, at::zeros_like(by_phase), /*rtol=*/1e-2, /*atol=*/1e-2)) {
    raise(
        "the vectors of {} of a complex matrix are only determined up to a phase each, and the "
        "function that is differentiated depends on the phases. Use a function that doesn't: of "
        "the vectors' absolute values, or of products of a vector with its conjugate.",
        name);
  }
}

// _linalg_eigh(A, UPLO, compute_v) -> (eigenvalues, V)
void eigh(JvpCall& call) {
  const Tensor& a = call[0];
  const Args found = call.all_with({{2, true}});
  const Tensor values = found[0].toTensor();
  const Tensor vectors = found[1].toTensor();
  const bool wants_vectors = call.flag(2);
  call.have_run({values, wants_vectors ? vectors : at::empty({0}, a.options())});
  const Tensor rotated = vectors.mH().matmul(call.tangent(0)).matmul(vectors);
  call.set_tangent(0, real_diagonal(rotated).clone());
  if (wants_vectors) {
    call.set_tangent(1, vectors.matmul(over_gaps(rotated, values)));
  }
}

// Where (rotated - rotated^H) / gaps may be rounding error for the most part. It is not, although
// the gap is, where the vectors hardly count: in a logarithm near one, which scales them by 1e-16.
// Only cotangents tell how much they count. A tangent, 1e16 there, is as large where what follows
// cancels it to noise, as in an exponential: it is nan for both.
Tensor is_noise_over_gaps(const Tensor& rotated, const Tensor& values, const Tensor& by_values) {
  const double epsilon = relative_rounding(values);
  const Tensor lengths = rotated.detach().abs().amax(-2, /*keepdim=*/true);
  const Tensor both = lengths + lengths.mT();
  const Tensor gaps = (values.unsqueeze(-2) - values.unsqueeze(-1)).detach().abs();
  const auto largest = [](const Tensor& x) { return x.detach().abs().amax(-1, /*keepdim=*/true); };
  Tensor scale = largest(lengths) / largest(values).unsqueeze(-1);
  if (by_values.defined()) {
    scale = at::maximum(scale, largest(by_values).unsqueeze(-1));
  }
  const Tensor error = both * (epsilon * values.sym_size(-1));
  const Tensor is_precise = error <= std::sqrt(epsilon) * scale * gaps;
  return is_precise.logical_not().logical_and(both != 0); // also where the scale is nan
}

void eigh_vjp(VjpCall& call) {
  if (!call.flag(2)) {
    raise(
        "the gradient of eigenvalues needs their vectors: call _linalg_eigh with compute_v=True.");
  }
  const Tensor& by_values = call.cotangents()[0];
  const Tensor& by_vectors = call.cotangents()[1];
  const Tensor& vectors = call.result(1);
  const Tensor back = vectors.mH();
  if (!by_vectors.defined()) {
    call.give(0, (vectors * by_values.unsqueeze(-2)).matmul(back));
    return;
  }
  const Tensor rotated = back.matmul(by_vectors);
  check_phase(diagonal_of(rotated), "linalg.eigh");
  const Tensor& values = call.result(0);
  if (values.sym_size(-1) == 0) {
    call.give(0, rotated);
    return;
  }
  const Tensor is_noise = is_noise_over_gaps(rotated, values, by_values);
  const Tensor skew = 0.5 * (rotated - rotated.mH());
  const Tensor hermitian = over_gaps(skew, values, /*of_squares=*/false, is_noise);
  call.give(0, vectors.matmul(with_diagonal(hermitian, by_values)).matmul(back));
}

// vectors^-1 matrix, or nan where the vectors are not independent: a matrix that can't be
// diagonalized has no derivative of this form, even if rounding separates its vectors.
Tensor solved_by(const Tensor& vectors, const Tensor& matrix) {
  if (vectors.sym_numel() == 0) {
    return matrix;
  }
  const Tensor lu = std::get<0>(at::linalg_lu_factor_ex(vectors.detach()));
  const Tensor pivots = lu.diagonal(0, -2, -1).abs();
  const Tensor smallest = pivots.amin(-1, /*keepdim=*/true);
  const Tensor factor =
      at::ones_like(smallest).masked_fill(smallest <= 8 * smallest_of(pivots), NAN);
  return at::linalg_solve(vectors, matrix) * factor.unsqueeze(-1); // so its derivatives are nan too
}

// linalg_eig(A) -> (eigenvalues, V). The vectors keep length one.
void eig(JvpCall& call) {
  call.run();
  const Tensor& vectors = call.result(1);
  const Tensor t = call.tangent(0).to(vectors.scalar_type());
  const Tensor inner = solved_by(vectors, t.matmul(vectors));
  call.set_tangent(0, diagonal_of(inner).clone());
  const Tensor turned = vectors.matmul(over_gaps(inner, call.result(0)));
  const Tensor lengths = at::real(vectors.conj() * turned).sum(-2, /*keepdim=*/true);
  call.set_tangent(1, turned - vectors * lengths);
}

void eig_vjp(VjpCall& call) {
  const Tensor& by_values = call.cotangents()[0];
  const Tensor& by_vectors = call.cotangents()[1];
  const Tensor& vectors = call.result(1);
  const Tensor back = vectors.mH();
  if (!by_vectors.defined()) {
    call.give(0, solved_by(back, by_values.unsqueeze(-1) * back));
    return;
  }
  const Tensor rotated = back.matmul(by_vectors);
  check_phase(diagonal_of(rotated), "linalg.eig");
  const Tensor lengths = real_diagonal(rotated).unsqueeze(-2);
  const Tensor turned = rotated - back.matmul(vectors) * lengths;
  const Tensor inner = with_diagonal(conjugate_over_gaps(turned, call.result(0)), by_values);
  call.give(0, solved_by(back, inner.matmul(back)));
}

// The phase rotations of complex singular vectors: half for the left ones, half for the right ones.
Tensor with_half_phases(const Tensor& matrix, const Tensor& diagonal, const Tensor& values) {
  if (!diagonal.is_complex()) {
    return matrix;
  }
  const Tensor turn = 0.5 * over_values(at::imag(diagonal).unsqueeze(-2), values).squeeze(-2);
  return with_diagonal(matrix, at::complex(at::zeros_like(turn), turn));
}

Tensor first_columns(const Tensor& matrix, const c10::SymInt& count) {
  return matrix.sym_size(-1) > count ? matrix.narrow_symint(-1, 0, count) : matrix;
}

// The tangents of the left vectors U, where `moved` is A' V and `inner` is U^H A' V. The right
// vectors are the left vectors of A^H. Vectors in excess of the values are constants, as in torch.
Tensor turned(
    const Tensor& vectors, const Tensor& values, const Tensor& moved, const Tensor& inner) {
  const c10::SymInt count = values.sym_size(-1);
  const Tensor main = first_columns(vectors, count);
  const Tensor scaled = over_gaps(inner * values.unsqueeze(-2), values, /*of_squares=*/true);
  const Tensor turn = with_half_phases(scaled - scaled.mH(), diagonal_of(inner), values);
  Tensor tangent = main.matmul(turn);
  if (main.sym_size(-2) > count) {
    tangent = tangent + over_values(moved - main.matmul(inner), values);
  }
  if (vectors.sym_size(-1) > count) {
    tangent = at::constant_pad_nd_symint(tangent, {0, vectors.sym_size(-1) - count});
  }
  return tangent;
}

// _linalg_svd(A, full_matrices, compute_uv, *, driver) -> (U, S, V^H)
void svd(JvpCall& call) {
  const bool wants_vectors = call.flag(2);
  const Args found = call.all_with({{2, true}});
  const Tensor left = found[0].toTensor();
  const Tensor values = found[1].toTensor();
  const Tensor right = found[2].toTensor().mH();
  if (wants_vectors) {
    call.have_run(found);
  } else {
    const Tensor none = at::empty({0}, left.options());
    call.have_run({none, values, none});
  }
  const Tensor t = call.tangent(0);
  const c10::SymInt count = values.sym_size(-1);
  const Tensor moved = t.matmul(first_columns(right, count));
  const Tensor inner = first_columns(left, count).mH().matmul(moved);
  call.set_tangent(1, real_diagonal(inner).clone());
  if (wants_vectors) {
    const Tensor moved_back = t.mH().matmul(first_columns(left, count));
    call.set_tangent(0, turned(left, values, moved, inner));
    call.set_tangent(2, turned(right, values, moved_back, at::conj_physical(inner.mT())).mH());
  }
}

// linalg_eigvalsh(A, UPLO) and linalg_svdvals(A, *, driver): these compute the vectors, but not
// their tangents.
void values_of_eigh(JvpCall& call) {
  const auto [values, vectors] = at::_linalg_eigh(call[0], call.arg(1).toStringView(), true);
  call.have_run({values});
  const Tensor rotated = vectors.mH().matmul(call.tangent(0)).matmul(vectors);
  call.set_tangent(0, real_diagonal(rotated).clone());
}

void values_of_svd(JvpCall& call) {
  const auto driver = call.arg(1).isNone()
                          ? std::nullopt
                          : std::optional<std::string_view>(call.arg(1).toStringView());
  const auto [left, values, right] =
      at::_linalg_svd(call[0], /*full_matrices=*/false, /*compute_uv=*/true, driver);
  call.have_run({values});
  const Tensor inner = left.mH().matmul(call.tangent(0)).matmul(right.mH());
  call.set_tangent(0, real_diagonal(inner).clone());
}

// The contribution of U's cotangent g, before the product with V^H; `rotated` is U^H g.
Tensor turned_back(
    const Tensor& vectors, const Tensor& values, const Tensor& g, const Tensor& rotated) {
  const Tensor apart = over_gaps(rotated, values, /*of_squares=*/true);
  const Tensor turn = (apart + apart.mH()) * values.unsqueeze(-2);
  const Tensor inside = vectors.matmul(with_half_phases(turn, diagonal_of(rotated), values));
  return vectors.sym_size(-2) > vectors.sym_size(-1)
             ? inside + over_values(g - vectors.matmul(rotated), values)
             : inside;
}

void svd_vjp(VjpCall& call) {
  if (!call.flag(2)) {
    raise(
        "the gradient of singular values needs their vectors: call _linalg_svd with "
        "compute_uv=True.");
  }
  const auto& by = call.cotangents();
  const Tensor& values = call.result(1);
  const c10::SymInt count = values.sym_size(-1);
  const Tensor left = first_columns(call.result(0), count);
  const Tensor right = first_columns(call.result(2).mH(), count);
  Tensor by_left, by_right, phases;
  if (by[1].defined()) {
    by_left = left * by[1].unsqueeze(-2);
  }
  if (by[0].defined()) {
    const Tensor g = first_columns(by[0], count);
    const Tensor rotated = left.mH().matmul(g);
    phases = diagonal_of(rotated);
    by_left = sum_of({by_left, turned_back(left, values, g, rotated)});
  }
  if (by[2].defined()) {
    const Tensor g = first_columns(by[2].mH(), count);
    const Tensor rotated = right.mH().matmul(g);
    phases = sum_of({phases, diagonal_of(rotated)});
    by_right = left.matmul(turned_back(right, values, g, rotated).mH());
  }
  if (phases.defined()) {
    check_phase(phases, "linalg.svd");
  }
  call.give(0, sum_of({by_left.defined() ? by_left.matmul(right.mH()) : by_left, by_right}));
}

} // namespace

void add_eigen_svd(Table& rules) {
  rules["_linalg_eigh"]
      .jvp(eigh)
      .vjp(
          eigh_vjp,
          {.by = {"A"},
           .of = {"eigenvalues", "eigenvectors"},
           .saves = {"eigenvalues", "eigenvectors"}})
      .along(Along::Matrices);
  rules["linalg_eig"]
      .jvp(eig)
      .vjp(
          eig_vjp,
          {.by = {"self"},
           .of = {"eigenvalues", "eigenvectors"},
           .saves = {"eigenvalues", "eigenvectors"}})
      .along(Along::Matrices);
  rules["linalg_eigvalsh"].jvp(values_of_eigh);
  rules["linalg_svdvals"].jvp(values_of_svd);
  rules["_linalg_eigvals"].along(Along::Matrices);
  rules["_linalg_svd"]
      .jvp(svd)
      .vjp(svd_vjp, {.by = {"A"}, .of = {"U", "S", "Vh"}, .saves = {"U", "S", "Vh"}})
      .along(Along::Matrices);
}

} // namespace torchlayers
