// Operators whose results have no tangent, whatever tangents their arguments have: comparisons,
// step functions, fills.
#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {

void add_constants(Table& rules) {
  for (const char* name : {
           "eq.Scalar",
           "eq.Tensor",
           "ne.Scalar",
           "ne.Tensor",
           "lt.Scalar",
           "lt.Tensor",
           "le.Scalar",
           "le.Tensor",
           "gt.Scalar",
           "gt.Tensor",
           "ge.Scalar",
           "ge.Tensor",
           "isnan",
           "isinf",
           "isposinf",
           "isneginf",
           "signbit",
           "logical_not",
           "logical_and",
           "logical_or",
           "logical_xor",
           "argmax",
           "argmin",
           "any",
           "any.dim",
           "all",
           "all.dim",
           "count_nonzero",
           "nonzero",
           "searchsorted.Tensor",
           "bucketize.Tensor",
           "zeros_like",
           "ones_like",
           "full_like",
           "empty_like",
           "new_zeros",
           "new_ones",
           "new_full",
           "new_empty",
           "new_empty_strided",
           "detach_copy",
           "normal_functional",
           "bernoulli.p",
       }) {
    rules[name].constant();
  }
  for (const char* name : {
           "floor",
           "ceil",
           "round",
           "round.decimals",
           "trunc",
           "sign",
           "floor_divide",
           "floor_divide.Scalar",
           "fill.Scalar",
           "zero",
       }) {
    rules[name].step();
  }
}

} // namespace torchlayers
