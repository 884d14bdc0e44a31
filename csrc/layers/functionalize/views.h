// Sizes, strides and offsets of functional tensors.
#pragma once

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

#include <memory>
#include <optional>
#include <vector>

#include "core/operator.h"

namespace torchlayers {

// NOTE [Strides of functional tensors]
// A functional tensor takes its strides and offset from its value, which is recomputed when its
// base is written to: from a copy of the base, or, without views, as a compact copy. But the layers
// above read them as those of the view that it represents: when autograd differentiates a write to
// y[1:], the offset selects the part of y's cotangent, and the strides of y.t() decide whether it
// can be viewed or has to be copied. So the layer preserves them: a view gets those that the
// operator gives to a tensor without data, and only operators whose purpose it is change them.

bool is_functional(const at::Tensor& tensor);

// Whether sizes and strides can be read. Those of a symbolic tensor would add operators on them to
// a graph that is traced.
bool has_known_strides(const at::Tensor& tensor);

// The views by which a functional tensor is made from its memory, which torch protects.
std::vector<std::shared_ptr<at::functionalization::ViewMeta>>& views_of(
    at::FunctionalTensorWrapper& wrapper);

// A view of torch's that is replayed in a way of our own.
class ReplayedView : public at::functionalization::ViewMeta {
 public:
  explicit ReplayedView(std::shared_ptr<ViewMeta> of_torch);

  ViewMeta& of_torch() const {
    return *of_torch_;
  }

 private:
  std::shared_ptr<ViewMeta> of_torch_;
};

// Saves the strides and offsets of an operator's functional arguments, to restore them after it.
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

// The results without functionalization of a view operator that is about to be called with these
// arguments; nullopt if it makes no view, or if they can't be computed.
std::optional<Args> views_without_values(const Operator& op, const Args& args);
// Gives the results the strides and offsets of `views`.
void lay_out_like(const Args& views, size_t count, const Args& results);

// NOTE [Views that overlap]
// A write to a view is carried back to the memory by the inverses of the operators that made it.
// One that shows an element more than once (unfold, as_strided) has none: torch adds up the
// elements, or takes one that was not written. So views of such a view are taken of the memory
// itself, by as_strided.
//
// The views that this operator makes of a functional tensor that overlaps itself, as by
// views_without_values; nullopt if it makes none, or makes them otherwise than by strides.
std::optional<Args> views_of_overlapping(const Operator& op, const Args& args);

// For a functional tensor that is a view: another one that covers all of its memory, for
// as_strided, which counts from the start of the memory.
at::Tensor whole_of(const at::Tensor& view);
// Allows writes to the result of as_strided on such a tensor: torch rejects a write through
// as_strided of a view, because it would take the view for the memory.
void allow_as_strided(const at::Tensor& view);

} // namespace torchlayers
