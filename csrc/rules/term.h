// The compiled form of a rule's line: a term of a tangent, or a gradient with respect to one
// argument.
#pragma once

#include <bitset>
#include <string_view>

#include "rules/operands.h"

namespace torchlayers {

class VjpCall;

// The arguments and results that a rule reads, which the node has to save for it.
struct Reads {
  std::bitset<64> args;
  std::bitset<64> results;

  static Reads everything() {
    return {~std::bitset<64>(), ~std::bitset<64>()};
  }
  static Reads all_but_first() {
    return {~std::bitset<64>(1), {}};
  }
  // Those that an expression of rule_macros.h names. NOTE [What a line reads].
  static Reads named_in(std::string_view expression);

  void add(const Reads& other) {
    args |= other.args;
    results |= other.results;
  }
};

// How a term determines the cotangent: not at all; by the conjugate of the derivative that it
// multiplies by; or, being conjugate-linear or real, as it is.
enum class Adjoint { Unknown, Conjugate, Itself };

// The contribution of one argument's tangent to the result's tangent: a function linear in it.
struct Term {
  size_t arg;
  Adjoint adjoint;
  Reads reads;
  at::Tensor (*of)(const at::Tensor& tangent, const Operands& call, const Reads& reads);
  bool is_elementwise = false; // multiplies the tangent, broadcast, by a derivative
  bool is_of_numbers = false;  // NOTE [One pass]

  at::Tensor operator()(const at::Tensor& tangent, const Operands& call) const {
    return of(tangent, call, reads);
  }
};

// The gradient with respect to one argument: written out, where g is the cotangent of the first
// result; or by the same term as the tangent, because the Jacobian is symmetric (a diagonal one
// is).
struct Vjp {
  size_t arg;
  Reads reads;
  at::Tensor (*of)(const at::Tensor& g, const VjpCall& call) = nullptr;
  decltype(Term::of) symmetric = nullptr;
  bool conjugates = false; // for complex numbers: uses the derivative's conjugate
  bool is_elementwise = false;
  bool is_of_numbers = false;

  Vjp(size_t arg, const Reads& reads, decltype(of) written) : arg(arg), reads(reads), of(written) {}
  Vjp(const Term& term)
      : arg(term.arg),
        reads(term.reads),
        symmetric(term.of),
        conjugates(term.adjoint == Adjoint::Conjugate),
        is_elementwise(term.is_elementwise),
        is_of_numbers(term.is_of_numbers) {}

  at::Tensor operator()(const at::Tensor& g, const VjpCall& call) const;
};

} // namespace torchlayers
