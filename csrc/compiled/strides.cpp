#include "compiled/strides.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace torchlayers::compiled {

bool has_strides(const at::Tensor& tensor, at::IntArrayRef strides) {
  if (tensor.numel() == 0) {
    return true;
  }
  const auto sizes = tensor.sizes();
  const auto found = tensor.strides();
  for (size_t dim = 0; dim < strides.size(); ++dim) {
    if (found[dim] != strides[dim] && sizes[dim] != 1) {
      return false;
    }
  }
  return true;
}

at::Tensor with_strides(const at::Tensor& tensor, at::IntArrayRef strides) {
  std::vector<int64_t> order(strides.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(
      order.begin(), order.end(), [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    back[order[i]] = static_cast<int64_t>(i);
  }
  return tensor.permute(order).clone(at::MemoryFormat::Contiguous).permute(back);
}

} // namespace torchlayers::compiled
