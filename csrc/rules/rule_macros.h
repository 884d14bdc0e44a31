// How a family of rules is written: one statement per operator, inside
// `void add_…(Table& rules)`. Most take one line:
//
//   ELEMENTWISE("sin", t * cos(x))                         its derivative, times t
//   LINEAR("trace", on_diagonal(g, c.sizes_of(0)))         its transpose, on g
//   BILINEAR("bmm", g.bmm(c[1].mH()), c[0].mH().bmm(g))    the two transposes
//
// and the others give the rule for the tangent, for the gradients or for both (table.h):
//
//   rules["atan2"].terms(TERM(0, turned(t, c[1], c[0])), TERM(1, -turned(t, c[0], c[1])));
//   rules["max.dim"].jvp(one_of<1>).vjp(VJP(0, put_back(g, c.sizes_of(0), c.dim(1), …)));
//   LINEAR("flip", g.flip(c.integers(1))).gathers()        what else is known of it (table.h)
//   rules["linalg_qr"].jvp(qr).vjp(qr_vjp, {.by = {"A"}, .of = {"Q", "R"}, .saves = {"Q", "R"}});
//
// In a line, x is the first argument, y the first result, and c the call: c[1] is the second
// argument, c.result(1) the second result. t is the tangent of the line's argument, and g the
// cotangent of the result. Arguments are counted as in the schema.
//
// NOTE [What a line reads]: a node saves what its rule reads and nothing else. What that is follows
// from the names in the line: x, y, c[1], c.result(1), or c as a whole, which means all arguments
// and no result. Names are read, and not what an evaluation reads, because lines decide: by a
// dtype, by what is None. A node has to save what any branch reads. An evaluation on symbolic
// values (below) has neither dtypes nor sizes to decide by: it would stop at such a line, and
// everything would have to be saved for it. A line that reads what it does not name gets an
// undefined tensor.
//
// A line is evaluated on tensors, on plain numbers (NOTE [One pass]) and on values of a graph (NOTE
// [Symbolic values]).
#pragma once

#include "core/aten_functions.h"
#include "rules/small_tensors/scalar_fast_path.h"
#include "rules/small_tensors/scalar_math.h"
#include "rules/table.h"

// A term of the tangent: t multiplied elementwise by a derivative. With the conjugate of that
// derivative it also gives the cotangent. A line that compiles for plain numbers too is computed on
// numbers where that is faster; one that needs tensors calls functions by at::. NOTE [One pass].
#define TERM(arg, ...) TORCHLAYERS_TERM(arg, Adjoint::Conjugate, true, __VA_ARGS__)

// The same for a term in which t enters by its conjugate: such a term is its own adjoint.
#define CONJUGATE_TERM(arg, ...) TORCHLAYERS_TERM(arg, Adjoint::Itself, true, __VA_ARGS__)

// The same for a term that multiplies t by a symmetric matrix, such as softmax's.
#define SYMMETRIC_TERM(arg, ...) TORCHLAYERS_TERM(arg, Adjoint::Conjugate, false, __VA_ARGS__)

// A term of the tangent that implies nothing about cotangents; of an operator that is elementwise
// in the argument, or not.
#define ELEMENTWISE_TANGENT(arg, ...) TORCHLAYERS_TANGENT(arg, true, __VA_ARGS__)
#define TANGENT(arg, ...) TORCHLAYERS_TANGENT(arg, false, __VA_ARGS__)

// The gradient with respect to an argument.
#define VJP(arg, ...)                                           \
  Vjp(arg,                                                      \
      Reads::named_in(#__VA_ARGS__),                            \
      [](const at::Tensor& g, const VjpCall& c) -> at::Tensor { \
        [[maybe_unused]] const at::Tensor& x = c[0];            \
        [[maybe_unused]] const at::Tensor& y = c.result();      \
        return __VA_ARGS__;                                     \
      })

#define ELEMENTWISE(name, ...) rules[name].terms(TERM(0, __VA_ARGS__))
#define LINEAR(name, ...) rules[name].linear_in(0).vjp(VJP(0, __VA_ARGS__))
#define BILINEAR(name, by_first, by_second) \
  rules[name].linear_in(0, 1).vjp(VJP(0, by_first), VJP(1, by_second))

#define TORCHLAYERS_TANGENT(arg, is_elementwise, ...)                            \
  Term {                                                                         \
    arg, Adjoint::Unknown, Reads::named_in(#__VA_ARGS__),                        \
        [](const at::Tensor& t, const Operands& c, const Reads&) -> at::Tensor { \
          [[maybe_unused]] const at::Tensor& x = c[0];                           \
          [[maybe_unused]] const at::Tensor& y = c.result();                     \
          return __VA_ARGS__;                                                    \
        },                                                                       \
        is_elementwise                                                           \
  }

// A function of tensors, and of plain numbers too if it compiles for them.
#define TORCHLAYERS_TERM(arg, adjoint, is_elementwise, ...)                                       \
  as_term(                                                                                        \
      arg,                                                                                        \
      adjoint,                                                                                    \
      is_elementwise,                                                                             \
      Reads::named_in(#__VA_ARGS__),                                                              \
      [](const auto& t, const auto& c, const auto& x, const auto& y) -> decltype((__VA_ARGS__)) { \
        return __VA_ARGS__;                                                                       \
      })

namespace torchlayers {

template <class Line>
Term as_term(size_t arg, Adjoint adjoint, bool is_elementwise, const Reads& reads, Line /*line*/) {
  return {arg, adjoint, reads, compute_line<Line>, is_elementwise, is_of_numbers<Line>};
}

} // namespace torchlayers
