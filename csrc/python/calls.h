// A call of a transform, from its arguments to its results. csrc/README.md tells the steps.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <utility>
#include <vector>

#include "core/recording.h"
#include "python/steps.h"
#include "python/tree.h"

namespace torchlayers {

// Which transform, of what, and how: the NamedTuple that Python has made of it. Its fields are read
// here; its methods flatten what can't be flattened here, and say what is wrong.
class Given {
 public:
  explicit Given(PyObject* tuple) : tuple_(tuple) {}

  pybind11::handle field(Py_ssize_t i) const {
    return PyTuple_GET_ITEM(tuple_, i);
  }
  template <class... Arguments>
  pybind11::object ask(const char* method, const Arguments&... arguments) const {
    return pybind11::handle(tuple_).attr(method)(arguments...);
  }
  // The method raises.
  template <class... Arguments>
  [[noreturn]] void refuse(const char* method, const Arguments&... arguments) const {
    ask(method, arguments...);
    TORCH_INTERNAL_ASSERT(false, method);
  }

 private:
  PyObject* tuple_;
};

// What is differentiated: by which of the arguments, and whether the function returns an aux.
class Differentiated : public Given {
 public:
  using Given::Given;
  pybind11::handle func() const {
    return field(1);
  }
  pybind11::handle argnums() const {
    return field(2);
  }
  bool has_aux() const {
    return field(3).ptr() == Py_True;
  }
  // Which of so many arguments; all where argnums is None, if it may be.
  std::vector<Py_ssize_t> places(Py_ssize_t count, bool may_be_none) const;
  // What the function returned, and aux.
  std::pair<pybind11::object, pybind11::object> split_aux(pybind11::object output) const;
};

// func(*args, **kwargs)
pybind11::object call(pybind11::handle func, const pybind11::object& args, PyObject* kwargs);

// An int, and no bool; or nothing.
std::optional<int64_t> plain_int(pybind11::handle object);

pybind11::object zeros_like(pybind11::handle tensor);

pybind11::tuple picked(PyObject* args, const std::vector<Py_ssize_t>& places);

// The arguments, those at `places` replaced, and the tensors of the rest wrapped untracked.
pybind11::tuple wrapped_around(
    PyObject* args,
    const std::vector<Py_ssize_t>& places,
    const pybind11::tuple& chosen,
    int64_t level,
    const Replaced& replaced);

// The object with its tensors at, or no more at, the level of a grad or jvp.
pybind11::object wrap_all(pybind11::handle object, int64_t level, const Replaced& replaced);
pybind11::object unwrap_all(pybind11::handle object, int64_t level, const Replaced& replaced);

// Calls it, once: torch registers some of its rules at the first call of a transform.
void load_once(bool& is_loaded, const char* module, const char* name);

// The calls, in call_grad.cpp, call_jvp.cpp and call_vmap.cpp. What one gets passed is not counted:
// each has one caller.
using Call = pybind11::object(PyObject* const* passed);
Call call_along, call_grad, call_vjp, call_vjp_fn, call_vjp_of_leaves, call_jvp, call_vmap,
    call_vmap_of_leaves;

void bind_recorded(pybind11::module_& m);

} // namespace torchlayers
