// How a family of rules is written down: a statement an operator, inside `void add_…(Table&
// rules)`. Most are of one line:
//
//   ELEMENTWISE("sin", t * cos(x))                         its derivative, times t
//   LINEAR("flip", g.flip(c.integers(1)))                  its transpose, on g
//   BILINEAR("bmm", g.bmm(c[1].mH()), c[0].mH().bmm(g))    the two transposes
//
// and the others say what they know, of the tangent, of the gradients or of both (table.h):
//
//   rules["atan2"].terms(TERM(0, turned(t, c[1], c[0])), TERM(1, -turned(t, c[0], c[1])));
//   rules["max.dim"].jvp(one_of<1>).vjp(VJP(0, put_back(g, c.sizes_of(0), c.integer(1), …)));
//   rules["linalg_qr"].jvp(qr).vjp(qr_vjp, {.by = {"A"}, .of = {"Q", "R"}, .saves = {"Q", "R"}});
//
// In a line, `c` is the call, x its first argument, y its result, t the tangent of the argument
// that the line is about, and g the cotangent of the result. Arguments go by their places in the
// schema.
//
// NOTE [What a line reads]: a node saves what its rule reads and nothing else, and what that is
// is taken from the line's own words: x, y, c[1], c.result(1), or c as a whole, which stands for
// all arguments and no result.
#pragma once

#include <ATen/ATen.h>

#include "rules/numbers.h"
#include "rules/one_pass.h"
#include "rules/table.h"

// What t, multiplied by a derivative element by element, adds to the tangent: with the
// derivative's conjugate, it is the cotangent too. A line that can be called with numbers is
// computed of them where that is faster; what begins with at:: is for tensors. NOTE [One pass].
#define TERM(arg, ...) TORCHLAYERS_TERM(arg, Adjoint::Conjugate, __VA_ARGS__)

// The same where t enters by its conjugate, which is its own adjoint.
#define CONJUGATE_TERM(arg, ...) TORCHLAYERS_TERM(arg, Adjoint::Itself, __VA_ARGS__)

// What t adds to the tangent, in a way that says nothing of cotangents.
#define TANGENT(arg, ...)                                                        \
  Term {                                                                         \
    arg, Adjoint::Unknown, "", Reads(),                                          \
        [](const at::Tensor& t, const Operands& c, const Reads&) -> at::Tensor { \
          [[maybe_unused]] const at::Tensor& x = c[0];                           \
          [[maybe_unused]] const at::Tensor& y = c.result();                     \
          return __VA_ARGS__;                                                    \
        }                                                                        \
  }

// The gradient by an argument.
#define VJP(arg, ...)                                                              \
  Vjp(arg, #__VA_ARGS__, [](const at::Tensor& g, const VjpCall& c) -> at::Tensor { \
    [[maybe_unused]] const at::Tensor& x = c[0];                                   \
    [[maybe_unused]] const at::Tensor& y = c.result();                             \
    return __VA_ARGS__;                                                            \
  })

#define ELEMENTWISE(name, ...) rules[name].terms(TERM(0, __VA_ARGS__))
#define LINEAR(name, ...) rules[name].linear_in(0).vjp(VJP(0, __VA_ARGS__))
#define BILINEAR(name, by_first, by_second) \
  rules[name].linear_in(0, 1).vjp(VJP(0, by_first), VJP(1, by_second))

// A function of tensors, and of numbers if its type can be told for them.
#define TORCHLAYERS_TERM(arg, adjoint, ...)                                                       \
  as_term(                                                                                        \
      arg,                                                                                        \
      adjoint,                                                                                    \
      #__VA_ARGS__,                                                                               \
      [](const auto& t, const auto& c, const auto& x, const auto& y) -> decltype((__VA_ARGS__)) { \
        return __VA_ARGS__;                                                                       \
      })

namespace torchlayers {

template <class Line>
Term as_term(size_t arg, Adjoint adjoint, const char* text, Line /*line*/) {
  return {arg, adjoint, text, Reads::named_in(text), compute_line<Line>, is_of_numbers<Line>};
}

} // namespace torchlayers
