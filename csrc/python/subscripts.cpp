// y[i] and y[i] = v in Python. NOTE [Subscripts].
#include <ATen/ATen.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "core/keys.h"
#include "core/stack.h"
#include "dispatch/typed/typed.h"
#include "layers/transforms.h"
#include "python/bindings.h"
#include "python/tree.h"
#include "values/batched.h"
#include "values/copy.h"
#include "values/inside.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

namespace py = pybind11;
using at::Tensor;

// NOTE [Subscripts]
// What y[i] comes to is decided by torch's binding, before there is an operator, and under vmap two
// of its decisions are to be others. For a tensor without dimensions, y[t], it asks t for its
// number, and a batched one has many: it is an index like any other then. And y[i] = v is a view
// and a copy to it, which cost more to make than the few numbers to move, where all that they come
// to is a part of a memory. So ours stands before torch's, in the slots for subscripts of
// torch.Tensor and of the classes that have them from it, and leaves to torch's whatever it does
// not know: all where no layer is on.

binaryfunc torchs_get = nullptr;
objobjargproc torchs_set = nullptr;

bool may_be_ours(PyObject* self) {
  return C10_UNLIKELY(thread_keys().included().has(kFront)) && THPVariable_CheckExact(self) &&
         !at::impl::torch_function_mode_enabled();
}

// The members of a tuple, or the one index that is none.
c10::ArrayRef<PyObject*> members_of(PyObject* const& index) {
  if (!PyTuple_CheckExact(index)) {
    return index;
  }
  return {
      reinterpret_cast<PyTupleObject*>(index)->ob_item,
      static_cast<size_t>(PyTuple_GET_SIZE(index))};
}

// ---- y[i] = v at once

bool is_int_or_none(PyObject* object) {
  return object == Py_None || PyLong_CheckExact(object);
}

// Whether it takes up a dimension.
bool is_of_dim(PyObject* index) {
  return PyLong_CheckExact(index) || PySlice_Check(index);
}

// What whole numbers, slices, None and an ellipsis leave of the dimensions behind the batch.
class Narrowed {
 public:
  explicit Narrowed(const Tensor& batch) : part(all_of(batch)) {}

  // False where torch is to see to it.
  bool take(c10::ArrayRef<PyObject*> indices) {
    for (size_t i = 0; i < indices.size(); ++i) {
      PyObject* index = indices[i];
      if (index == Py_None) {
        part.sizes.insert(part.sizes.begin() + dim_, 1);
        part.strides.insert(part.strides.begin() + dim_, 0);
        ++dim_;
      } else if (index == Py_Ellipsis) {
        const auto rest = std::count_if(indices.begin() + i + 1, indices.end(), is_of_dim);
        const auto behind = static_cast<ptrdiff_t>(part.sizes.size()) - rest;
        if (behind < dim_) {
          return false;
        }
        dim_ = behind;
      } else if (dim_ >= static_cast<ptrdiff_t>(part.sizes.size()) || !take_of_dim(index)) {
        return false;
      }
    }
    return true;
  }

  Part part;

 private:
  bool take_of_dim(PyObject* index) {
    int64_t& size = part.sizes[dim_];
    int64_t& stride = part.strides[dim_];
    if (PyLong_CheckExact(index)) {
      int overflow = 0;
      int64_t at = PyLong_AsLongLongAndOverflow(index, &overflow);
      at += at < 0 ? size : 0;
      if (overflow != 0 || at < 0 || at >= size) {
        return false;
      }
      part.offset += at * stride;
      part.sizes.erase(part.sizes.begin() + dim_);
      part.strides.erase(part.strides.begin() + dim_);
      return true;
    }
    if (!PySlice_Check(index)) {
      return false;
    }
    const auto* slice = reinterpret_cast<PySliceObject*>(index);
    Py_ssize_t start = 0;
    Py_ssize_t stop = 0;
    Py_ssize_t step = 0;
    if (!is_int_or_none(slice->start) || !is_int_or_none(slice->stop) ||
        !is_int_or_none(slice->step) || PySlice_Unpack(index, &start, &stop, &step) < 0) {
      PyErr_Clear();
      return false;
    }
    if (step < 1) {
      return false;
    }
    const Py_ssize_t count = PySlice_AdjustIndices(size, &start, &stop, step);
    part.offset += start * stride;
    size = count;
    stride *= step;
    ++dim_;
    return true;
  }

  ptrdiff_t dim_ = 1;
};

// The tensor that it stands for. NOTE [Made inside].
Tensor shown_here(const Tensor& tensor, const Layer& layer) {
  Tensor shown = layer.inside()->shown(tensor);
  return shown.defined() ? shown : tensor;
}

bool write_at_once(PyObject* self, PyObject* const& index, PyObject* given) {
  const Layer* layer = vmap_on_top();
  if (layer == nullptr || layer->level() != 1 || !THPVariable_CheckExact(given)) {
    return false;
  }
  const Tensor y = shown_here(THPVariable_Unpack(self), *layer);
  const Tensor* into = batched_in_front(y, *layer);
  if (into == nullptr) {
    return false;
  }
  Narrowed narrowed(*into);
  if (!narrowed.take(members_of(index))) {
    return false;
  }
  const Tensor value = shown_here(THPVariable_Unpack(given), *layer);
  const auto* batched = at::functorch::maybeGetBatchedImpl(value);
  if (batched == nullptr) { // or of another transform, which is not plain
    const bool has_no_batch = value.dim() < static_cast<int64_t>(narrowed.part.sizes.size());
    return has_no_batch && copy_at_once(*into, narrowed.part, value);
  }
  return batched->level() == layer->level() && batched->bdim() == 0 &&
         !has_escaped(value, *layer) &&
         copy_at_once(*into, narrowed.part, batched->value(), /*in_front=*/1);
}

// ---- y[t], where t is a number of each sample

// Whether samples have their own of it, at any level.
bool is_of_samples(const Tensor& tensor) {
  const Tensor shown = torchlayers::shown(tensor);
  if (at::functorch::maybeGetBatchedImpl(shown) != nullptr) {
    return true;
  }
  const auto* wrapper = wrapper_of(shown);
  return wrapper != nullptr && is_of_samples(wrapper->value());
}

const Tensor* number_among(PyObject* index) {
  if (!THPVariable_CheckExact(index)) {
    return nullptr;
  }
  const Tensor& tensor = THPVariable_Unpack(index);
  const bool is_number =
      tensor.dim() == 0 && at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  return is_number ? &tensor : nullptr;
}

bool any_number_of_samples(c10::ArrayRef<PyObject*> indices) {
  return std::any_of(indices.begin(), indices.end(), [](PyObject* index) {
    const Tensor* number = number_among(index);
    return number != nullptr && is_of_samples(*number);
  });
}

bool is_flag(const Tensor& number) {
  return number.scalar_type() == at::kBool || number.scalar_type() == at::kByte;
}

// y[indices], taken apart: a view, what tensors pick of that, and the flags that say whether.
class Pick {
 public:
  Pick(PyObject* self, c10::ArrayRef<PyObject*> indices) : self_(self) {
    const int64_t rank = THPVariable_Unpack(self).dim();
    std::vector<Index> all;
    int64_t taken = 0;
    for (PyObject* index : indices) {
      all.push_back(look_at(index));
      taken += all.back().dims;
    }
    for (Index& index : all) {
      if (index.basic.ptr() == Py_Ellipsis) {
        index.dims = rank - taken;
        index.left = index.dims;
      }
      add(std::move(index));
    }
  }

  bool any_flag() const {
    return !flags_.empty();
  }

  Tensor get() const {
    const Tensor view = seen();
    return picks() ? at::index(ordered(view), indices_of(view)) : view;
  }

  void set(PyObject* given) const {
    Tensor view = seen();
    Tensor value = as_tensor(given, view);
    if (!flags_.empty()) {
      Tensor flag = flags_.front();
      for (size_t i = 1; i < flags_.size(); ++i) {
        flag = flag.logical_and(flags_[i]);
      }
      const Tensor old = picks() ? at::index(ordered(view), indices_of(view)) : view;
      value = at::where(flag, value, old);
    }
    if (picks()) {
      ordered(view).index_put_(indices_of(view), value);
    } else {
      view.copy_(value);
    }
  }

 private:
  struct Index {
    py::object basic;  // what stands for it in the view's
    int64_t dims = 0;  // of the tensor, that it takes up
    int64_t left = 0;  // of the view, for it
    Tensor picks = {}; // that many of the view's dimensions
    bool is_number = false;
  };

  Index look_at(PyObject* index) {
    const auto as_it_is = py::reinterpret_borrow<py::object>(index);
    if (index == Py_None) {
      return {as_it_is, 0, 1};
    }
    if (index == Py_Ellipsis) {
      return {as_it_is};
    }
    if (PySlice_Check(index)) {
      return {as_it_is, 1, 1};
    }
    if (!THPVariable_Check(index) && !PyBool_Check(index) && PyIndex_Check(index)) {
      return {as_it_is, 1, 0};
    }
    const Tensor tensor = THPVariable_Check(index)
                              ? THPVariable_Unpack(index)
                              : imported("torch", "as_tensor")(as_it_is).cast<Tensor>();
    if (tensor.dim() == 0 && is_flag(tensor)) {
      flags_.push_back(tensor.to(at::kBool));
      return {py::none()};
    }
    const bool is_mask = is_flag(tensor);
    const int64_t dims = is_mask ? tensor.dim() : 1;
    return {all_, dims, dims, is_mask ? tensor : tensor.to(at::kLong), tensor.dim() == 0};
  }

  void add(Index index) {
    if (index.basic.is_none() && index.left == 0) {
      return; // a flag
    }
    for (int64_t i = 0; i < std::max<int64_t>(index.picks.defined() ? index.dims : 1, 1); ++i) {
      basic_.append(index.basic);
    }
    const int64_t dim = rank_;
    rank_ += index.left;
    if (index.picks.defined()) {
      (index.is_number ? numbers_ : others_).emplace_back(dim, index.picks);
    }
  }

  bool picks() const {
    return !numbers_.empty() || !others_.empty();
  }

  Tensor seen() const {
    const auto view = py::reinterpret_steal<py::object>(torchs_get(self_, py::tuple(basic_).ptr()));
    if (!view) {
      throw py::error_already_set();
    }
    return THPVariable_Unpack(view.ptr());
  }

  // The view's dimensions, where the ones that numbers pick of are next to the others' first:
  // torch picks of them one after the other.
  std::vector<int64_t> order(const Tensor& view) const {
    std::vector<int64_t> dims(view.dim());
    std::iota(dims.begin(), dims.end(), 0);
    if (others_.empty()) {
      return dims;
    }
    for (const auto& [dim, number] : numbers_) {
      dims.erase(std::find(dims.begin(), dims.end(), dim));
    }
    auto at = std::find(dims.begin(), dims.end(), others_.front().first);
    for (const auto& [dim, number] : numbers_) {
      at = dims.insert(at, dim) + 1;
    }
    return dims;
  }

  Tensor ordered(const Tensor& view) const {
    return others_.empty() ? view : view.permute(order(view));
  }

  c10::List<std::optional<Tensor>> indices_of(const Tensor& view) const {
    c10::List<std::optional<Tensor>> indices;
    const std::vector<int64_t> dims = order(view);
    for (size_t i = 0; i < dims.size();) {
      const Tensor* picks = nullptr;
      for (const auto* each : {&numbers_, &others_}) {
        for (const auto& [dim, tensor] : *each) {
          picks = dim == dims[i] ? &tensor : picks;
        }
      }
      indices.push_back(picks != nullptr ? std::optional(*picks) : std::nullopt);
      const bool is_mask = picks != nullptr && is_flag(*picks);
      i += is_mask ? static_cast<size_t>(picks->dim()) : 1;
    }
    return indices;
  }

  // The value, as torch's binding takes it.
  Tensor as_tensor(PyObject* given, const Tensor& view) const {
    Tensor value;
    if (THPVariable_Check(given)) {
      value = THPVariable_Unpack(given);
    } else {
      const auto as_tensor = imported("torch", "as_tensor");
      value = as_tensor(py::handle(given)).cast<Tensor>().to(view.options());
    }
    const auto sizes = value.sym_sizes();
    const auto first =
        std::find_if(sizes.begin(), sizes.end(), [](const auto& n) { return n != 1; });
    if (first != sizes.begin()) {
      value = value.view_symint(sizes.slice(first - sizes.begin()));
    }
    return others_.empty() ? value.to(view.scalar_type()) : value;
  }

  PyObject* self_;
  py::object all_ = py::slice(py::none(), py::none(), py::none());
  py::list basic_;
  int64_t rank_ = 0;                                // of the view, so far
  std::vector<std::pair<int64_t, Tensor>> numbers_; // and the view's dimension that each picks of
  std::vector<std::pair<int64_t, Tensor>> others_;
  std::vector<Tensor> flags_;
};

// ---- the slots

PyObject* get(PyObject* self, PyObject* index) {
  if (may_be_ours(self)) {
    HANDLE_TH_ERRORS
    const auto indices = members_of(index);
    if (any_number_of_samples(indices)) {
      const Pick pick(self, indices);
      if (!pick.any_flag()) { // whose result would have a size of its own for each sample
        return THPVariable_Wrap(pick.get());
      }
    }
    END_HANDLE_TH_ERRORS
  }
  return torchs_get(self, index);
}

int set(PyObject* self, PyObject* index, PyObject* value) {
  if (may_be_ours(self) && value != nullptr) {
    HANDLE_TH_ERRORS
    if (write_at_once(self, index, value)) {
      return 0;
    }
    const auto indices = members_of(index);
    if (any_number_of_samples(indices)) {
      Pick(self, indices).set(value);
      return 0;
    }
    END_HANDLE_TH_ERRORS_RET(-1)
  }
  return torchs_set(self, index, value);
}

void stand_before_torchs(PyTypeObject* type) {
  PyMappingMethods* slots = type->tp_as_mapping;
  if (slots->mp_subscript == torchs_get) {
    slots->mp_subscript = get;
  }
  if (slots->mp_ass_subscript == torchs_set) {
    slots->mp_ass_subscript = set;
  }
  const auto classes = py::handle(reinterpret_cast<PyObject*>(type)).attr("__subclasses__")();
  for (const py::handle each : classes) {
    stand_before_torchs(reinterpret_cast<PyTypeObject*>(each.ptr()));
  }
}

} // namespace

void stand_before_subscripts() {
  auto* base = reinterpret_cast<PyTypeObject*>(THPVariableClass);
  torchs_get = base->tp_as_mapping->mp_subscript;
  torchs_set = base->tp_as_mapping->mp_ass_subscript;
  stand_before_torchs(base);
}

} // namespace torchlayers
