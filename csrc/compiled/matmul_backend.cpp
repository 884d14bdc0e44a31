#include "compiled/matmul_backend.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <atomic>

#include "core/aten_functions.h"
#include "core/device.h"

namespace at::native {

// torch's entry point to oneDNN's products, which no header declares. Null if torch has none.
__attribute__((weak, visibility("default"))) void mkldnn_matmul(
    const Tensor& one, const Tensor& other, const Tensor& out, float beta, float alpha);

} // namespace at::native

namespace torchlayers::compiled {
namespace {

std::atomic<OneDnn> when_onednn = OneDnn::kWhereFaster;

// Multiplications per thread from which oneDNN was faster: NOTE [Two libraries for products].
constexpr int64_t kLarge = int64_t(1) << 20;

bool is_mkl_at_avx2() {
#if defined(__x86_64__) && defined(__GNUC__)
  static const bool is_so =
      at::hasMKL() && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_is("intel") == 0;
  return is_so;
#else
  return false;
#endif
}

// torch's entry point checks for what oneDNN needs for bfloat16, whatever the dtype.
bool is_onednn_there() {
#if defined(__x86_64__) && defined(__GNUC__)
  static const bool has_instructions = __builtin_cpu_supports("avx512bw") != 0 &&
                                       __builtin_cpu_supports("avx512vl") != 0 &&
                                       __builtin_cpu_supports("avx512dq") != 0;
#else
  constexpr bool has_instructions = true;
#endif
  return has_instructions && at::native::mkldnn_matmul != nullptr &&
         at::globalContext().userEnabledMkldnn();
}

// Rows or columns without gaps, and matrices too: oneDNN would copy others.
bool is_dense(const at::Tensor& matrices) {
  return matrices.is_contiguous() || matrices.mT().is_contiguous();
}

bool is_large(const at::Tensor& out, const at::Tensor& one) {
  return out.numel() * one.size(-1) >= kLarge * at::get_num_threads();
}

bool is_for_onednn(const at::Tensor& out, const at::Tensor& one, const at::Tensor& other) {
  const OneDnn when = when_onednn.load(std::memory_order_relaxed);
  if (when == OneDnn::kNever || (when == OneDnn::kWhereFaster && !is_mkl_at_avx2())) {
    return false;
  }
  const auto is_plain = [](const at::Tensor& x) {
    return is_in_host_memory(*x.unsafeGetTensorImpl()) && x.scalar_type() == at::kFloat &&
           !x.is_neg() && x.numel() > 0 && is_dense(x);
  };
  return is_onednn_there() && (when == OneDnn::kAlways || is_large(out, one)) && is_plain(out) &&
         is_plain(one) && is_plain(other);
}

} // namespace

OneDnn multiply_with(OneDnn when) {
  return when_onednn.exchange(when);
}

void multiply(
    const at::Tensor& out,
    const at::Tensor& one,
    const at::Tensor& other,
    const std::optional<at::Tensor>& added,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  at::Tensor written = out;
  const bool is_sum = !added || (beta.equal(1) && alpha.equal(1));
  if (is_sum && is_for_onednn(out, one, other)) {
    if (added) {
      written.copy_(*added);
    }
    // oneDNN writes results in columns one number at a time, a hundred times slower.
    if (out.is_contiguous()) {
      at::native::mkldnn_matmul(one, other, out, added ? 1.0F : 0.0F, 1.0F);
    } else {
      at::native::mkldnn_matmul(other.mT(), one.mT(), out.mT(), added ? 1.0F : 0.0F, 1.0F);
    }
  } else if (added && out.dim() == 2) {
    at::addmm_out(written, *added, one, other, beta, alpha);
  } else if (added) {
    at::baddbmm_out(written, *added, one, other, beta, alpha);
  } else if (out.dim() == 2) {
    at::mm_out(written, one, other);
  } else {
    at::bmm_out(written, one, other);
  }
}

} // namespace torchlayers::compiled
