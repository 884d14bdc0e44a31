// How often a tensor had been written to when it was saved for a gradient.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include "core/errors.h"

namespace torchlayers {

class SavedVersion {
 public:
  // Inference tensors have no version, and are taken to be intact.
  explicit SavedVersion(const at::Tensor& tensor)
      : counter_(
            tensor.is_inference() ? c10::VariableVersion(c10::VariableVersion::DISABLED)
                                  : torch::autograd::impl::version_counter(tensor)),
        saved_(counter_.enabled() ? counter_.current_version() : 0) {}

  bool is_intact() const {
    return !counter_.enabled() || counter_.current_version() == saved_;
  }
  uint32_t saved() const {
    return saved_;
  }
  uint32_t current() const {
    return counter_.current_version();
  }

  // Raises an error if the tensor has been written to since. `what()` is what it is needed for.
  template <class Describe>
  void check(const Describe& what) const {
    if (!is_intact()) {
      raise(
          "a tensor needed for {} has been modified by an inplace operation since: it is at "
          "version {}; expected version {}. Use the out-of-place operator, or write to a clone.",
          what(),
          current(),
          saved());
    }
  }

 private:
  c10::VariableVersion counter_;
  uint32_t saved_;
};

} // namespace torchlayers
