// Padding and its backward operators: linear, and each other's transposes.
#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

Tensor padded_with_zeros(const Tensor& t, const Operands& call) {
  return call.with({{0, t}, {2, at::Scalar(0)}});
}

Tensor unpadded(const Tensor& g, std::vector<c10::SymInt> padding) {
  for (c10::SymInt& width : padding) {
    width = -width;
  }
  return at::constant_pad_nd_symint(g, padding, 0);
}

} // namespace

// name_backward(g, x, padding) reads only the sizes of x.
#define PADDING(name)                                                    \
  LINEAR(#name, at::name##_backward_symint(g, x, c.sizes(1))).gathers(); \
  rules[#name "_backward"]                                               \
      .linear_in(0)                                                      \
      .vjp(VJP(0, at::name##_symint(g, c.sizes(2))), VJP(1, Tensor()))   \
      .scatters()

void add_padding(Table& rules) {
  rules["constant_pad_nd"]
      .jvp(TANGENT(0, padded_with_zeros(t, c)))
      .vjp(VJP(0, unpadded(g, c.sizes(1))))
      .piecewise_linear()
      .gathers();
  PADDING(reflection_pad1d);
  PADDING(reflection_pad2d);
  PADDING(reflection_pad3d);
  PADDING(replication_pad1d);
  PADDING(replication_pad2d);
  PADDING(replication_pad3d);
}

} // namespace torchlayers
