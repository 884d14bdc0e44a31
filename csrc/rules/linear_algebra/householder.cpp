// Products of Householder reflections, as geqrf returns them.
#include "rules/families.h"
#include "rules/linear_algebra/triangles.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

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
        inverse_times((tau_ * above_).mH(), by_factor, /*is_upper=*/false, /*has_ones=*/true);
    return -(by_inner * without_above().conj()).sum(-1);
  }

 private:
  // (I + D S)^-1 matrix
  Tensor solve(const Tensor& matrix) const {
    return inverse_times(tau_ * above_, matrix, /*is_upper=*/true, /*has_ones=*/true);
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

void add_householder(Table& rules) {
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
