#include "python/patches/indexing.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "core/keys.h"
#include "core/torch_versions.h"
#include "dispatch/unboxed/unboxed.h"
#include "python/compiled/dict_version.h"
#include "python/function_modes.h"
#include "python/patches/patches.h"
#include "values/batched.h"
#include "values/copy.h"
#include "values/local_storages.h"
#include "values/strided_region.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using at::Tensor;

binaryfunc torchs_get = nullptr;
objobjargproc torchs_set = nullptr;

bool may_be_ours(PyObject* self) {
  return C10_UNLIKELY(thread_keys().included().has(kFront)) && !overrides_functions(self) &&
         !any_enabled_function_mode();
}

Indices members_of(PyObject* const& index) {
  if (!PyTuple_CheckExact(index)) {
    return index;
  }
  return {
      reinterpret_cast<PyTupleObject*>(index)->ob_item,
      static_cast<size_t>(PyTuple_GET_SIZE(index))};
}

// ---- y[i] = v by a direct copy

bool is_int_or_none(PyObject* object) {
  return object == Py_None || PyLong_CheckExact(object);
}

// Whether the index uses up a dimension.
bool is_of_dim(PyObject* index) {
  return PyLong_CheckExact(index) || PySlice_Check(index);
}

// The part of a batched tensor that integers, slices, None and an ellipsis select.
class Narrowed {
 public:
  explicit Narrowed(const Tensor& batch) : part(all_of(batch)) {}

  // False if torch has to handle it.
  bool take(Indices indices) {
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

// The tensor that it represents here. NOTE [Made inside].
Tensor shown_here(const Tensor& tensor, const Layer& layer) {
  Tensor shown = layer.local_storages()->shown(tensor);
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
  if (batched == nullptr) { // or one of another transform, which is not plain
    const bool has_no_batch = value.dim() < static_cast<int64_t>(narrowed.part.sizes.size());
    return has_no_batch && copy_at_once(*into, narrowed.part, value);
  }
  return batched->level() == layer->level() && batched->bdim() == 0 &&
         !has_escaped(value, *layer) &&
         copy_at_once(*into, narrowed.part, batched->value(), /*in_front=*/1);
}

// ---- y[i] = v by torch

// A batched tensor has no storage but reports one; one that a vmap has written to no longer has
// any. NOTE [Made inside].
bool has_no_memory(PyObject* object) {
  const Tensor& tensor = THPVariable_Unpack(object);
  const c10::StorageImpl* memory = memory_of(tensor);
  return at::functorch::isBatchedTensor(tensor) || (memory != nullptr && is_closed(*memory));
}

// Adds a dimension to a scalar, which torch removes again: then its storage is not accessed. The
// result is a copy, because y[i] += 1 ends in y[i] = y[i], and removing the dimension may leave
// strides that differ from y's, with which it can't be copied to itself.
THPObjectPtr as_torch_takes(PyObject* value, PyObject* self) {
  if (kWritesAskForMemory && THPVariable_CheckExact(value) &&
      (has_no_memory(value) || has_no_memory(self))) {
    const Tensor& number = THPVariable_Unpack(value);
    if (number.dim() == 0) {
      return THPObjectPtr(THPVariable_Wrap(number.clone().unsqueeze(0)));
    }
  }
  return THPObjectPtr(Py_NewRef(value));
}

// ---- the slots

PyObject* subscript(PyObject* self, PyObject* index) {
  if (may_be_ours(self)) {
    HANDLE_TH_ERRORS
    const auto indices = members_of(index);
    if (any_number_of_samples(indices)) {
      const Pick pick(self, indices, torchs_get);
      if (!pick.any_flag()) { // otherwise the result's size would differ between samples
        return THPVariable_Wrap(pick.get());
      }
    }
    END_HANDLE_TH_ERRORS
  }
  return torchs_get(self, index);
}

int set_subscript(PyObject* self, PyObject* index, PyObject* value) {
  if (may_be_ours(self) && value != nullptr) {
    HANDLE_TH_ERRORS
    const bool is_plain = THPVariable_CheckExact(self); // not a tensor of a layer in Python
    if (is_plain && write_at_once(self, index, value)) {
      return 0;
    }
    const auto indices = members_of(index);
    if (any_number_of_samples(indices)) {
      Pick(self, indices, torchs_get).set(value);
      return 0;
    }
    return is_plain ? torchs_set(self, index, as_torch_takes(value, self))
                    : torchs_set(self, index, value);
    END_HANDLE_TH_ERRORS_RET(-1)
  }
  return torchs_set(self, index, value);
}

// Subclasses inherit a copy of the slots when they are created.
class InheritedSlots {
 public:
  // Sets ours or torch's, in the classes that have the other.
  void set(bool is_in) {
    if (!is_current()) {
      classes_.clear();
      versions_.clear();
      list(reinterpret_cast<PyTypeObject*>(THPVariableClass));
    }
    const binaryfunc old_get = is_in ? torchs_get : &subscript;
    const binaryfunc new_get = is_in ? &subscript : torchs_get;
    const objobjargproc old_set = is_in ? torchs_set : &set_subscript;
    const objobjargproc new_set = is_in ? &set_subscript : torchs_set;
    for (const Class& each : classes_) {
      each.slots->mp_subscript =
          each.slots->mp_subscript == old_get ? new_get : each.slots->mp_subscript;
      each.slots->mp_ass_subscript =
          each.slots->mp_ass_subscript == old_set ? new_set : each.slots->mp_ass_subscript;
    }
  }

 private:
  struct Class {
    PyTypeObject* type; // borrowed: a class that is freed leaves the dict of its base
    PyMappingMethods* slots;
    PyObject* subclasses; // the dict of its direct subclasses when it was listed
  };
  // NOTE [Dict versions]
  struct Version {
    pybind11::object dict;
    DictVersion version;
  };

  static PyObject* dict_of(PyTypeObject* type) {
    return static_cast<PyObject*>(static_cast<void*>(type->tp_subclasses));
  }

  // Looks at the dicts first: if they are the same, no class has been freed.
  bool is_current() const {
    return !classes_.empty() && std::ranges::all_of(versions_, [](const Version& each) {
      return each.version.is_seen();
    }) && std::ranges::all_of(classes_, [](const Class& each) {
      return dict_of(each.type) == each.subclasses;
    });
  }

  void list(PyTypeObject* type) {
    const pybind11::handle of(reinterpret_cast<PyObject*>(type));
    const pybind11::object subclasses = of.attr("__subclasses__")();
    PyObject* dict = dict_of(type);
    classes_.push_back({type, type->tp_as_mapping, dict});
    if (dict != nullptr) {
      versions_.push_back(
          {pybind11::reinterpret_borrow<pybind11::object>(dict), DictVersion(dict)});
      versions_.back().version.see();
    }
    for (const pybind11::handle each : subclasses) {
      list(reinterpret_cast<PyTypeObject*>(each.ptr()));
    }
  }

  std::vector<Class> classes_;
  std::vector<Version> versions_;
};

// y.__setitem__(i, v), which function modes call, must match y[i] = v.
template <class Slot>
void patch_method(const char* name, Slot torchs, Slot ours) {
  THPObjectPtr found(PyObject_GetAttrString(THPVariableClass, name));
  PyErr_Clear();
  if (found && Py_IS_TYPE(found.get(), &PyWrapperDescr_Type)) {
    void*& called = reinterpret_cast<PyWrapperDescrObject*>(found.release())->d_wrapped;
    if (called == reinterpret_cast<void*>(torchs)) {
      add_pointer_patch(called, reinterpret_cast<void*>(ours));
    }
  }
}

} // namespace

void patch_subscripts() {
  const auto* slots = reinterpret_cast<PyTypeObject*>(THPVariableClass)->tp_as_mapping;
  torchs_get = slots->mp_subscript;
  torchs_set = slots->mp_ass_subscript;
  add_patch([slots = std::make_shared<InheritedSlots>()](bool is_in) { slots->set(is_in); });
  patch_method("__getitem__", torchs_get, &subscript);
  // Both are of one slot, which a new class inherits if they agree.
  patch_method("__setitem__", torchs_set, &set_subscript);
  patch_method("__delitem__", torchs_set, &set_subscript);
}

} // namespace torchlayers
