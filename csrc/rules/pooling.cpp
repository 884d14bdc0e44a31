// Pooling, resampling and padding of images: linear, but for the choice of a maximum.
#include "families.h"
#include "forms.h"

namespace torchlayers {
namespace {

using at::Tensor;

// (maxima, indices into the last `Spatial` dimensions, flattened)
template <int64_t Spatial>
void max_pool(Call& call) {
  call.run();
  if (!call.has_tangent(0)) {
    return; // the random samples of a fractional pool have one
  }
  const Tensor& indices = call.result(1);
  const Tensor flat = call.tangent(0).flatten(-Spatial);
  call.set_tangent(0, flat.gather(-1, indices.flatten(-Spatial)).view_as(indices));
}

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

void add_pooling(Table& rules) {
  WRITTEN("max_pool2d_with_indices", max_pool<2>);
  PULLS(
      "max_pool2d_with_indices",
      {0,
       PULL(
           at::max_pool2d_with_indices_backward(
               g,
               x,
               c.integers(1),
               c.integers(2),
               c.integers(3),
               c.integers(4),
               c.flag(5),
               c.result(1)))});
  WRITTEN("max_pool3d_with_indices", max_pool<3>);
  WRITTEN("adaptive_max_pool2d", max_pool<2>);
  WRITTEN("adaptive_max_pool3d", max_pool<3>);
  WRITTEN("fractional_max_pool2d", max_pool<2>);
  WRITTEN("fractional_max_pool3d", max_pool<3>);
  TERMS("constant_pad_nd", {0, padded_with_zeros});
  PULLS("constant_pad_nd", {0, PULL(unpadded(g, c.sizes(1)))});
  PULLS(
      "avg_pool2d",
      {0,
       PULL(
           at::avg_pool2d_backward(
               g,
               x,
               c.integers(1),
               c.integers(2),
               c.integers(3),
               c.flag(4),
               c.flag(5),
               c.arg(6).toOptional<int64_t>()))});
  PULLS("_adaptive_avg_pool2d", {0, PULL(at::_adaptive_avg_pool2d_backward(g, x))});
  for (const char* name : {
           "avg_pool2d",
           "avg_pool3d",
           "_adaptive_avg_pool2d",
           "_adaptive_avg_pool3d",
           "max_unpool2d",
           "max_unpool3d",
           "avg_pool2d_backward",
           "avg_pool3d_backward",
           "_adaptive_avg_pool2d_backward",
           "_adaptive_avg_pool3d_backward",
           "max_pool2d_with_indices_backward",
           "max_pool3d_with_indices_backward",
           "adaptive_max_pool2d_backward",
           "adaptive_max_pool3d_backward",
           "fractional_max_pool2d_backward",
           "fractional_max_pool3d_backward",
           "reflection_pad1d",
           "reflection_pad2d",
           "reflection_pad3d",
           "replication_pad1d",
           "replication_pad2d",
           "replication_pad3d",
           "reflection_pad1d_backward",
           "reflection_pad2d_backward",
           "reflection_pad3d_backward",
           "replication_pad1d_backward",
           "replication_pad2d_backward",
           "replication_pad3d_backward",
           "upsample_linear1d",
           "upsample_bilinear2d",
           "_upsample_bilinear2d_aa",
           "upsample_bicubic2d",
           "_upsample_bicubic2d_aa",
           "upsample_trilinear3d",
           "upsample_nearest1d",
           "_upsample_nearest_exact1d",
           "upsample_nearest2d",
           "_upsample_nearest_exact2d",
           "upsample_nearest3d",
           "_upsample_nearest_exact3d",
           "upsample_linear1d_backward",
           "upsample_bilinear2d_backward",
           "_upsample_bilinear2d_aa_backward",
           "upsample_bicubic2d_backward",
           "_upsample_bicubic2d_aa_backward",
           "upsample_trilinear3d_backward",
           "upsample_nearest1d_backward",
           "_upsample_nearest_exact1d_backward",
           "upsample_nearest2d_backward",
           "_upsample_nearest_exact2d_backward",
           "upsample_nearest3d_backward",
           "_upsample_nearest_exact3d_backward",
           "im2col",
           "col2im",
           "pixel_shuffle",
           "pixel_unshuffle",
           "channel_shuffle",
           "affine_grid_generator",
       }) {
    LINEAR(name);
  }
}

} // namespace torchlayers
