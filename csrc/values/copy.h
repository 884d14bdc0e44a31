// Copying numbers without an operator.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchlayers {

// Some of a tensor's elements, counted from its first.
struct Part {
  int64_t offset;
  at::DimVector sizes;
  at::DimVector strides;
};
Part all_of(const at::Tensor& tensor);

// Copies the numbers of `from`, broadcast, to a part of `to`, where there are few of them, both are
// plain and in the processor's memory, and nobody is there who would see the operator: it takes
// longer to find out what to do than to do it. False, and nothing is done, elsewhere. For the
// lowest layer. So many first dimensions of `from` line up with the part's first ones; the others
// are broadcast from behind.
bool copy_at_once(
    const at::Tensor& to, const Part& part, const at::Tensor& from, size_t in_front = 0);

} // namespace torchlayers
