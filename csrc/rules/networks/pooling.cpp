// Pooling and pixel rearrangements: linear, except for the choice of a maximum.
#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

// The elements at these indices, which point into the last `Spatial` dimensions, flattened.
template <int64_t Spatial>
Tensor chosen(const Tensor& tensor, const Tensor& indices) {
  return tensor.flatten(-Spatial).gather(-1, indices.flatten(-Spatial)).view_as(indices);
}

// (maxima, indices)
template <int64_t Spatial>
void max_pool(JvpCall& call) {
  call.run();
  if (call.has_tangent(0)) { // the random samples of a fractional pool may have one
    call.set_tangent(0, chosen<Spatial>(call.tangent(0), call.result(1)));
  }
}

// The sizes of the spatial dimensions.
template <size_t Spatial>
std::vector<c10::SymInt> spatial_sizes(c10::SymIntArrayRef sizes) {
  const auto spatial = sizes.slice(sizes.size() - Spatial);
  return {spatial.begin(), spatial.end()};
}

// The transpose of shuffling a number of groups shuffles with the number of channels per group.
Tensor unshuffled(const Tensor& g, const c10::SymInt& groups) {
  return at::channel_shuffle_symint(g, g.sym_size(1) / groups);
}

std::optional<int64_t> divisor(const c10::IValue& value) {
  return value.toOptional<int64_t>();
}

// A backward operator (g, x, …) that is linear in g, and depends on x only through its sizes and
// the positions of maxima.
#define BACKWARD(name, ...) rules[name].linear_in(0).vjp(VJP(0, __VA_ARGS__), VJP(1, Tensor()))

#define AVG_POOL(name)        \
  LINEAR(                     \
      #name,                  \
      at::name##_backward(    \
          g,                  \
          x,                  \
          c.integers(1),      \
          c.integers(2),      \
          c.integers(3),      \
          c.flag(4),          \
          c.flag(5),          \
          divisor(c.arg(6)))) \
      .along(Along::Windows); \
  BACKWARD(                   \
      #name "_backward",      \
      at::name(               \
          g,                  \
          c.integers(2),      \
          c.integers(3),      \
          c.integers(4),      \
          c.flag(5),          \
          c.flag(6),          \
          divisor(c.arg(7)))) \
      .along(Along::TransposedWindows)

#define MAX_POOL(name, spatial)    \
  rules[#name]                     \
      .jvp(max_pool<spatial>)      \
      .vjp(                        \
          VJP(0,                   \
              at::name##_backward( \
                  g,               \
                  x,               \
                  c.integers(1),   \
                  c.integers(2),   \
                  c.integers(3),   \
                  c.integers(4),   \
                  c.flag(5),       \
                  c.result(1))))   \
      .selects(Along::Windows);    \
  BACKWARD(#name "_backward", chosen<spatial>(g, c[7])).scatters().along(Along::TransposedWindows)

#define ADAPTIVE_MAX_POOL(name, spatial)                   \
  rules[#name]                                             \
      .jvp(max_pool<spatial>)                              \
      .vjp(VJP(0, at::name##_backward(g, x, c.result(1)))) \
      .selects(Along::Windows);                            \
  BACKWARD(#name "_backward", chosen<spatial>(g, c[2])).scatters().along(Along::TransposedWindows)

#define FRACTIONAL_MAX_POOL(name, spatial)                                               \
  rules[#name]                                                                           \
      .jvp(max_pool<spatial>)                                                            \
      .vjp(VJP(0, at::name##_backward(g, x, c.integers(1), c.integers(2), c.result(1)))) \
      .piecewise_linear();                                                               \
  BACKWARD(#name "_backward", chosen<spatial>(g, c[4]))

} // namespace

void add_pooling(Table& rules) {
  MAX_POOL(max_pool2d_with_indices, 2);
  MAX_POOL(max_pool3d_with_indices, 3);
  ADAPTIVE_MAX_POOL(adaptive_max_pool2d, 2);
  ADAPTIVE_MAX_POOL(adaptive_max_pool3d, 3);
  FRACTIONAL_MAX_POOL(fractional_max_pool2d, 2);
  FRACTIONAL_MAX_POOL(fractional_max_pool3d, 3);
  AVG_POOL(avg_pool2d);
  AVG_POOL(avg_pool3d);
  LINEAR("_adaptive_avg_pool2d", at::_adaptive_avg_pool2d_backward(g, x)).along(Along::Windows);
  LINEAR("_adaptive_avg_pool3d", at::_adaptive_avg_pool3d_backward(g, x)).along(Along::Windows);
  BACKWARD(
      "_adaptive_avg_pool2d_backward",
      at::_adaptive_avg_pool2d_symint(g, spatial_sizes<2>(c.sizes_of(0))))
      .along(Along::TransposedWindows);
  BACKWARD(
      "_adaptive_avg_pool3d_backward",
      at::_adaptive_avg_pool3d_symint(g, spatial_sizes<3>(c.sizes_of(0))))
      .along(Along::TransposedWindows);
  LINEAR("max_unpool2d", chosen<2>(g, c[1])).scatters();
  LINEAR("max_unpool3d", chosen<3>(g, c[1])).scatters();
  LINEAR(
      "im2col",
      at::col2im_symint(
          g,
          spatial_sizes<2>(c.sizes_of(0)),
          c.integers(1),
          c.integers(2),
          c.integers(3),
          c.integers(4)))
      .gathers();
  LINEAR("col2im", at::im2col(g, c.integers(2), c.integers(3), c.integers(4), c.integers(5)))
      .scatters();
  LINEAR("pixel_shuffle", at::pixel_unshuffle(g, c.integer(1))).gathers();
  LINEAR("pixel_unshuffle", at::pixel_shuffle(g, c.integer(1))).gathers();
  LINEAR("channel_shuffle", unshuffled(g, c.size(1))).gathers();
}

} // namespace torchlayers
