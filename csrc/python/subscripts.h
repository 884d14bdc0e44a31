// y[i] and y[i] = v in Python.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <utility>
#include <vector>

namespace torchlayers {

// NOTE [Subscripts]
// What y[i] comes to is decided by torch's binding, before there is an operator, and under vmap two
// of its decisions are to be others. A tensor without dimensions, y[t], it takes for a number, and
// asks for that, unless t is batched on top of all: a layer above, whose wrapper t is, hides that
// each sample has its own. Then it takes t for an index like any other, which it is not: y[t, :, i]
// is y[t][:, i], whose dimensions come in another order. And y[i] = v is a view and a copy to it,
// which cost more to make than the few numbers to move, where all that they come to is a part of a
// memory. So ours stands before torch's, in the slots for subscripts of torch.Tensor and of the
// classes that have them from it, and leaves to torch's whatever it does not know: all where no
// layer is on. What is picked by a t of each sample is a copy, where one sample has a view. What t
// is then is copied as well: a number would stay what it was, whatever the function writes to t
// before a derivative asks for it.

// Puts ours in those slots, for good.
void stand_before_subscripts();

// The members of an index that is a tuple, or the one index that is none.
using Indices = c10::ArrayRef<PyObject*>;

// Whether a tensor without dimensions is among them that each sample has its own of: a number, or a
// flag, which takes all or nothing.
bool any_number_of_samples(Indices indices);

// y[indices], taken apart: a view, what tensors pick of that, and flags.
class Pick {
 public:
  // `torchs_get` is torch's own.
  Pick(PyObject* y, Indices indices, binaryfunc torchs_get);

  // Of samples.
  bool any_flag() const {
    return !flags_.empty();
  }
  at::Tensor get() const;
  void set(PyObject* value) const;

 private:
  struct Index {
    pybind11::object basic; // what stands for it in the view's
    int64_t dims = 0;       // of the tensor, that it takes up
    int64_t left = 0;       // of the view, for it
    at::Tensor picks = {};  // of these
    bool is_number = false;
  };
  // With the view's dimension that it picks of first.
  using Picking = std::vector<std::pair<int64_t, at::Tensor>>;

  Index look_at(PyObject* index);
  Index look_at_flag(const at::Tensor& flag);
  void add(const Index& index);
  at::Tensor view() const;
  std::vector<int64_t> order(int64_t rank) const;
  const at::Tensor* index_at(int64_t dim) const; // of the view; null where nothing picks of it
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
  int64_t rank_ = 0; // of the view, so far
  Picking numbers_;
  Picking others_;
  std::vector<at::Tensor> flags_;
};

} // namespace torchlayers
