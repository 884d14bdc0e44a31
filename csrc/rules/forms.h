// How a family of rules is written down: a line an operator, inside `void add_…(Table&
// rules)`. In a line, `c` is the call, x its first argument, y its result, t the tangent of
// the argument that the line is about, and g the cotangent of the result.
//
// NOTE [What a line reads]: a node saves what its rule reads and nothing else, and what that is
// is taken from the line's own words: x, y, c[1], c.result(1), or c as a whole, which stands for
// all arguments and no result.
#pragma once

#include <ATen/ATen.h>

#include "rules/numbers.h"
#include "rules/one_pass.h"
#include "rules/rule.h"

#define TORCHLAYERS_TANGENT_OF(...)                                           \
  [](const at::Tensor& t, [[maybe_unused]] const Operands& c) -> at::Tensor { \
    [[maybe_unused]] const at::Tensor& x = c[0];                              \
    [[maybe_unused]] const at::Tensor& y = c.result();                        \
    return __VA_ARGS__;                                                       \
  }

// What t, multiplied by a derivative element by element, adds to the tangent: with the
// derivative's conjugate, it is the cotangent too.
#define TERM(...) \
  TORCHLAYERS_TANGENT_OF(__VA_ARGS__), Adjoint::Conjugate, Reads::named_in(#__VA_ARGS__)

// The same where t enters by its conjugate, which is its own adjoint.
#define CONJUGATE_TERM(...) \
  TORCHLAYERS_TANGENT_OF(__VA_ARGS__), Adjoint::Itself, Reads::named_in(#__VA_ARGS__)

// Both of them as expressions of numbers too. NOTE [One pass].
#define TORCHLAYERS_IN_ONE_PASS(...)                                            \
  [](const at::Tensor& tangent, const Operands& call) -> at::Tensor {           \
    static const Reads reads = Reads::named_in(#__VA_ARGS__);                   \
    return in_one_pass(tangent, call, reads, [](const auto& t, const auto& c) { \
      [[maybe_unused]] const auto& x = c[0];                                    \
      [[maybe_unused]] const auto& y = c.result();                              \
      return __VA_ARGS__;                                                       \
    });                                                                         \
  }
#define ONE_PASS(...) \
  TORCHLAYERS_IN_ONE_PASS(__VA_ARGS__), Adjoint::Conjugate, Reads::named_in(#__VA_ARGS__)
#define CONJUGATE_ONE_PASS(...) \
  TORCHLAYERS_IN_ONE_PASS(__VA_ARGS__), Adjoint::Itself, Reads::named_in(#__VA_ARGS__)

// The operator itself with t for its first argument, element by element.
#define ON_FIRST on_first, Adjoint::Conjugate, Reads::all_but_first()

// What t adds to the tangent, in a way that says nothing of cotangents.
#define TANGENT(...) TORCHLAYERS_TANGENT_OF(__VA_ARGS__)

// The gradient by an argument.
#define VJP(...)                                                                 \
  Reads::named_in(#__VA_ARGS__),                                                 \
      [](const at::Tensor& g, [[maybe_unused]] const VjpCall& c) -> at::Tensor { \
        [[maybe_unused]] const at::Tensor& x = c[0];                             \
        [[maybe_unused]] const at::Tensor& y = c.result();                       \
        return __VA_ARGS__;                                                      \
      }

// Elementwise in its first argument: its derivative there, times t.
#define ELEMENTWISE(name, ...) rules.add_terms(name, {{0, TERM(__VA_ARGS__)}})
#define POINTWISE(name, ...) rules.add_terms(name, {{0, ONE_PASS(__VA_ARGS__)}})

// A term for each argument that may have a tangent: TERMS("sub.Tensor", {0, TERM(t)}, …).
#define TERMS(name, ...) rules.add_terms(name, {__VA_ARGS__})

// The gradients of an operator whose tangent stands elsewhere: VJPS("mv", {0, VJP(…)}, …),
// or, element by element, SYMMETRIC("mul.Tensor", {0, TERM(t * c[1])}, …).
#define VJPS(name, ...) \
  rules.add_vjp(name, std::make_unique<ByArgument>(std::vector<Vjp>{__VA_ARGS__}))
#define SYMMETRIC(name, ...) rules.add_symmetric(name, {__VA_ARGS__})

// Linear in the first argument; the second macro with its transpose, on g.
#define LINEAR(name) rules.add(name, std::make_unique<Multilinear>(std::vector<size_t>{0}))
#define TRANSPOSED(name, ...) \
  LINEAR(name);               \
  VJPS(name, {0, VJP(__VA_ARGS__)})

// Linear in each of these arguments.
#define MULTILINEAR(name, ...) \
  rules.add(name, std::make_unique<Multilinear>(std::vector<size_t>{__VA_ARGS__}))

// Linear in each of the first two: the product rule and two transposes.
#define BILINEAR(name, by_first, by_second) \
  MULTILINEAR(name, 0, 1);                  \
  VJPS(name, {0, VJP(by_first)}, {1, VJP(by_second)})

// Linear in these arguments at once.
#define LINEAR_TOGETHER(name, ...) \
  rules.add(name, std::make_unique<LinearTogether>(std::vector<size_t>{__VA_ARGS__}))

// No result has a tangent, nor a history.
#define CONSTANT(name) rules.add_constant(name)
// No result has a tangent, but torch records a gradient of zeros.
#define STEP(name) rules.add(name, std::make_unique<SumOfTerms>(std::vector<Term>{}))

#define WRITTEN(name, function) rules.add(name, std::make_unique<Written>(function))
