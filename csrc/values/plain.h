// Values and operators that nothing below a layer takes note of.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include <optional>

#include "core/operator.h"

namespace torchlayers {

// Whether every operator of this thread meets something else than layers and autograd: a mode.
bool is_any_mode_on();

// Whether a tensor is nothing but numbers in memory, and autograd of no kind follows it.
bool is_plain(const at::TensorImpl& value);
inline bool is_plain(const at::Tensor& value) {
  return is_plain(*value.unsafeGetTensorImpl());
}

// Whether nothing is below a layer that has been taken off the stack.
bool nothing_is_below();

// NOTE [Skipping autograd]
// Below the lowest layer an operator meets autograd first of all, which looks at its arguments,
// finds nothing to record, and calls the dispatcher again: a tenth of what a small operator takes.
// Where the arguments are plain it is known to find nothing, and operators go past it, and so do
// those that a rule calls. Not views or writes: autograd keeps account of them. And not a user's
// own operators and rules, which may use autograd as they like.
class SkipAutograd {
 public:
  // Whether the operator may, called with the values that end `args`, and nothing else.
  static bool may_go(const Operator& op, const Args& args);

  explicit SkipAutograd(bool is_sure) {
    if (is_sure) {
      guard_.emplace();
    }
  }

 private:
  std::optional<at::AutoDispatchBelowADInplaceOrView> guard_;
};

} // namespace torchlayers
