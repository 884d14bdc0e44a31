// Sizes, strides and offsets of functional tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

#include <optional>
#include <vector>

#include "core/operator.h"

namespace torchlayers {

// NOTE [Strides of functional tensors]
// A functional tensor takes its strides and its offset from its value, which is computed anew when
// its base is written to: from a copy of the base, or, without views, as a compact copy. But the
// layers above read them as those of the view it stands for: where autograd differentiates a write
// to y[1:], the offset says which part of y's cotangent it gets, and whether y.t() can be viewed or
// has to be copied is read from its strides. So the layer keeps them: a view is given those that
// the operator gives a tensor without numbers, and no operator changes them but those that exist
// to.

bool is_functional(const at::Tensor& tensor);

// The strides and offsets of the functional arguments of an operator, to be restored after it.
class KeptStrides {
 public:
  KeptStrides(const Operator& op, const Args& args);
  void restore() const;

 private:
  struct Kept {
    at::Tensor tensor;
    at::SymDimVector sizes;
    at::SymDimVector strides;
    c10::SymInt offset;
  };
  c10::SmallVector<Kept, 4> kept_;
};

// What a view operator, which is about to be called with these, returns without functionalization;
// nothing of an operator that makes no view, or where it can't be told.
std::optional<Args> views_without_values(const Operator& op, const Args& args);
// Gives the results the strides and offsets of those.
void lay_out_like(const Args& views, size_t count, const Args& results);

// Of a functional tensor that is a view: another that is all of its memory, for as_strided, which
// counts from the start of that.
at::Tensor whole_of(const at::Tensor& view);
// Lets what as_strided made of such a tensor be written to: torch refuses a write through
// as_strided of a view, which it would take for its memory.
void allow_as_strided(const at::Tensor& view);

} // namespace torchlayers
