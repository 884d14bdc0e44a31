// How a family of rules is written down: a line an operator, inside `void add_…(Table&
// rules)`. In a line, `c` is the call, x its first argument, y its result, and t the
// tangent of the argument that the line is about.
#pragma once

#include <ATen/ATen.h>

#include "rule.h"

#define TERM(expression)                                                    \
  [](const at::Tensor& t, [[maybe_unused]] const Call& c) -> at::Tensor {   \
    [[maybe_unused]] const at::Tensor& x = c[0];                            \
    [[maybe_unused]] const at::Tensor& y = c.result();                      \
    return expression;                                                      \
  }

// Elementwise in its first argument: its derivative there, times t.
#define ELEMENTWISE(name, expression) \
  rules.add(name, std::make_unique<SumOfTerms>(std::vector<Term>{{0, TERM(expression)}}))

// A term for each argument that may have a tangent: TERMS("sub.Tensor", {0, TERM(t)}, …).
#define TERMS(name, ...) \
  rules.add(name, std::make_unique<SumOfTerms>(std::vector<Term>{__VA_ARGS__}))

// Linear in the first argument.
#define LINEAR(name) rules.add(name, std::make_unique<Multilinear>(std::vector<size_t>{0}))

// Linear in each of these arguments.
#define MULTILINEAR(name, ...) \
  rules.add(name, std::make_unique<Multilinear>(std::vector<size_t>{__VA_ARGS__}))

// Linear in these arguments at once.
#define LINEAR_TOGETHER(name, ...) \
  rules.add(name, std::make_unique<LinearTogether>(std::vector<size_t>{__VA_ARGS__}))

// No result has a tangent.
#define CONSTANT(name) rules.add(name, std::make_unique<SumOfTerms>(std::vector<Term>{}))

#define WRITTEN(name, function) rules.add(name, std::make_unique<Written>(function))
