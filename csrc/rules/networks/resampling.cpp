// Resampling of images: linear in the image, with backward operators as the transposes.
#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

std::optional<double> scale(const c10::IValue& value) {
  return value.toOptional<double>();
}

} // namespace

// name(x, size, [align_corners], scales…) and name_backward(g, size, size of x, …), whose options
// come one position later.
#define SCALES_1(a, b, d) scale(c.arg(a))
#define SCALES_2(a, b, d) scale(c.arg(a)), scale(c.arg(b))
#define SCALES_3(a, b, d) scale(c.arg(a)), scale(c.arg(b)), scale(c.arg(d))

#define NEAREST(name, scales)                                                              \
  LINEAR(#name, at::name##_backward_symint(g, c.sizes(1), c.sizes_of(0), scales(2, 3, 4))) \
      .gathers();                                                                          \
  LINEAR(#name "_backward", at::name##_symint(g, c.sizes(1), scales(3, 4, 5))).scatters()

#define INTERPOLATING(name, scales)                                                                \
  LINEAR(                                                                                          \
      #name, at::name##_backward_symint(g, c.sizes(1), c.sizes_of(0), c.flag(2), scales(3, 4, 5))) \
      .along(Along::Windows);                                                                      \
  LINEAR(#name "_backward", at::name##_symint(g, c.sizes(1), c.flag(3), scales(4, 5, 6)))          \
      .along(Along::TransposedWindows)

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
  LINEAR(
      "affine_grid_generator", at::affine_grid_generator_backward_symint(g, c.sizes(1), c.flag(2)));
}

} // namespace torchlayers
