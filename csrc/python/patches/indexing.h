// y[i] and y[i] = v in Python.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <utility>
#include <vector>

namespace torchlayers {

// NOTE [Subscripts]
// torch's binding, not an operator, decides how y[i] is computed, and under vmap two of its
// decisions must differ. A tensor without dimensions, y[t], is treated as a number and converted to
// one, unless t is batched at the innermost level: a layer above, which wraps t, hides that each
// sample has its own. In that case t is treated as an ordinary index, which is wrong: y[t, :, i] is
// y[t][:, i], whose dimensions are in another order. And y[i] = v is computed as a view and a copy
// to it, which takes longer than moving the few numbers, if the result is just a part of a memory.
// So while there are layers our function is in the subscript slots of torch.Tensor and of the
// classes that inherit them. It leaves everything that it doesn't handle to torch's, including all
// calls outside layers. Elements picked by a t that differs between samples are a copy, where a
// single sample would get a view. The value of t at that time is copied as well: a number would not
// change when the function writes to t before a derivative needs it.

// Registers them as replacements. NOTE [Patches].
void patch_subscripts();

// The members of an index that is a tuple, or the single index.
using Indices = c10::ArrayRef<PyObject*>;

// Whether one of them is a tensor without dimensions that differs between samples: a number, or a
// boolean, which selects all or nothing.
bool any_number_of_samples(Indices indices);

// y[indices], split into a view, tensors that index that view, and booleans.
class Pick {
 public:
  // `torchs_get` is torch's own.
  Pick(PyObject* y, Indices indices, binaryfunc torchs_get);

  // Booleans that differ between samples.
  bool any_flag() const {
    return !flags_.empty();
  }
  at::Tensor get() const;
  void set(PyObject* value) const;

 private:
  struct Index {
    pybind11::object basic; // the index that replaces it in the view's
    int64_t dims = 0;       // dimensions of the tensor that it uses up
    int64_t left = 0;       // dimensions of the view that remain for it
    at::Tensor picks = {};  // the index into these
    bool is_number = false;
  };
  // Each with the first dimension of the view that it indexes.
  using Picking = std::vector<std::pair<int64_t, at::Tensor>>;

  Index look_at(PyObject* index);
  Index look_at_flag(const at::Tensor& flag);
  void add(const Index& index);
  at::Tensor view() const;
  std::vector<int64_t> order(int64_t rank) const;
  const at::Tensor* index_at(int64_t dim) const; // into the view; null if no tensor indexes it
  at::Tensor ordered(const at::Tensor& view) const;
  c10::List<std::optional<at::Tensor>> indices_of(const at::Tensor& view) const;
  at::Tensor picked(const at::Tensor& view) const;
  at::Tensor value_for(const at::Tensor& view, PyObject* given) const;

  bool picks() const {
    return !numbers_.empty() || !others_.empty();
  }

  PyObject* y_;
  binaryfunc torchs_get_;
  pybind11::list basic_;
  int64_t rank_ = 0; // of the view so far
  Picking numbers_;
  Picking others_;
  std::vector<at::Tensor> flags_;
};

} // namespace torchlayers
