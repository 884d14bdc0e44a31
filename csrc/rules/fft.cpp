// Fourier transforms.
#include "families.h"
#include "forms.h"

namespace torchlayers {

void add_fft(Table& rules) {
  LINEAR("_fft_r2c");
  LINEAR("_fft_c2r");
  LINEAR("_fft_c2c");
}

} // namespace torchlayers
