// Fourier transforms.
#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

// For a real signal, the frequencies above the middle are conjugates of those below it, and are
// left out. Multiplies, in place, the frequencies that represent two.
Tensor scaled_pairs(Tensor spectrum, int64_t dim, const c10::SymInt& length, double factor) {
  spectrum.narrow_symint(dim, 1, (length - 1) / 2).mul_(factor);
  return spectrum;
}

// _fft_r2c(x, dims, normalization, onesided)
Tensor real_gradient(
    const Tensor& g,
    c10::SymIntArrayRef sizes,
    const std::vector<int64_t>& dims,
    int64_t normalization,
    bool onesided) {
  if (!onesided) {
    return at::real(at::_fft_c2c(g, dims, normalization, /*forward=*/false));
  }
  const int64_t last = dims.back();
  const c10::SymInt& length = sizes[last < 0 ? last + g.dim() : last];
  return at::_fft_c2r_symint(
      scaled_pairs(g.clone(), last, length, 0.5), dims, normalization, length);
}

// _fft_c2r(x, dims, normalization, last_dim_size)
Tensor spectrum_gradient(const Tensor& g, const std::vector<int64_t>& dims, int64_t normalization) {
  return scaled_pairs(
      at::_fft_r2c(g, dims, normalization, /*onesided=*/true),
      dims.back(),
      g.sym_size(dims.back()),
      2);
}

} // namespace

void add_fft(Table& rules) {
  LINEAR("_fft_r2c", real_gradient(g, c.sizes_of(0), c.dims(1), c.integer(2), c.flag(3)))
      .along(Along::Mixes);
  LINEAR("_fft_c2r", spectrum_gradient(g, c.dims(1), c.integer(2))).along(Along::Mixes);
  LINEAR("_fft_c2c", at::_fft_c2c_symint(g, c.sizes(1), c.integer(2), !c.flag(3)))
      .along(Along::Mixes);
}

} // namespace torchlayers
