// Resampling of images: linear in the image, and a backward operator is the transpose.
#include "families.h"
#include "forms.h"

namespace torchlayers {
namespace {

using at::Tensor;

std::optional<double> scale(const c10::IValue& value) {
  return value.toOptional<double>();
}

// grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners)
template <auto Backward>
void pull_grid_sampler(Pullback& call) {
  const auto [input, grid] = Backward(
      call.cotangents()[0],
      call[0],
      call[1],
      call.integer(2),
      call.integer(3),
      call.flag(4),
      {call.wants(0), call.wants(1)});
  call.give(0, input);
  call.give(1, grid);
}

} // namespace

// name(x, size, [align_corners], scales…) and name_backward(g, size, size of x, …), whose options
// are a place further.
#define SCALES_1(a, b, d) scale(c.arg(a))
#define SCALES_2(a, b, d) scale(c.arg(a)), scale(c.arg(b))
#define SCALES_3(a, b, d) scale(c.arg(a)), scale(c.arg(b)), scale(c.arg(d))

#define NEAREST(name, scales)                                                                   \
  TRANSPOSED(#name, at::name##_backward_symint(g, c.sizes(1), c.sizes_of(0), scales(2, 3, 4))); \
  TRANSPOSED(#name "_backward", at::name##_symint(g, c.sizes(1), scales(3, 4, 5)))

#define INTERPOLATING(name, scales)                                                          \
  TRANSPOSED(                                                                                \
      #name,                                                                                 \
      at::name##_backward_symint(g, c.sizes(1), c.sizes_of(0), c.flag(2), scales(3, 4, 5))); \
  TRANSPOSED(#name "_backward", at::name##_symint(g, c.sizes(1), c.flag(3), scales(4, 5, 6)))

void add_resampling(Table& rules) {
  NEAREST(upsample_nearest1d, SCALES_1);
  NEAREST(upsample_nearest2d, SCALES_2);
  NEAREST(upsample_nearest3d, SCALES_3);
  NEAREST(_upsample_nearest_exact1d, SCALES_1);
  NEAREST(_upsample_nearest_exact2d, SCALES_2);
  NEAREST(_upsample_nearest_exact3d, SCALES_3);
  INTERPOLATING(upsample_linear1d, SCALES_1);
  INTERPOLATING(upsample_bilinear2d, SCALES_2);
  INTERPOLATING(upsample_bicubic2d, SCALES_2);
  INTERPOLATING(upsample_trilinear3d, SCALES_3);
  INTERPOLATING(_upsample_bilinear2d_aa, SCALES_2);
  INTERPOLATING(_upsample_bicubic2d_aa, SCALES_2);
  TRANSPOSED(
      "affine_grid_generator", at::affine_grid_generator_backward_symint(g, c.sizes(1), c.flag(2)));
  rules.add_pull(
      "grid_sampler_2d",
      {0, 1},
      {0},
      Reads{0b11, 0},
      pull_grid_sampler<at::grid_sampler_2d_backward>);
  rules.add_pull(
      "grid_sampler_3d",
      {0, 1},
      {0},
      Reads{0b11, 0},
      pull_grid_sampler<at::grid_sampler_3d_backward>);
}

} // namespace torchlayers
