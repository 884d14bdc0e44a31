// A call of a transform, from its arguments to its results. csrc/README.md describes the steps.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <utility>
#include <vector>

#include "core/skip_autograd.h"
#include "python/calls/patched_torch_func.h"
#include "python/tree.h"

namespace torchlayers {

// A transform, the function it transforms, and its options: a NamedTuple created by Python. Its
// fields are read here; its methods flatten arguments that C++ can't flatten, and raise the errors.
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
  // Calls a method that raises an error.
  template <class... Arguments>
  [[noreturn]] void refuse(const char* method, const Arguments&... arguments) const {
    ask(method, arguments...);
    TORCH_INTERNAL_ASSERT(false, method);
  }

 private:
  PyObject* tuple_;
};

// The settings of a grad, vjp or jvp: the function, argnums, and whether the function returns an
// aux.
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
  // The positions that argnums selects of `count` arguments; all if argnums is None and that is
  // allowed.
  std::vector<Py_ssize_t> places(Py_ssize_t count, bool may_be_none) const;
  // Splits the function's return value into the output and aux.
  std::pair<pybind11::object, pybind11::object> split_aux(pybind11::object output) const;
};

// func(*args, **kwargs)
pybind11::object call(pybind11::handle func, const pybind11::object& args, PyObject* kwargs);

// The value of an int that is not a bool; otherwise nothing.
std::optional<int64_t> plain_int(pybind11::handle object);

pybind11::object zeros_like(pybind11::handle tensor);

pybind11::tuple picked(PyObject* args, const std::vector<Py_ssize_t>& places);

// The arguments, with those at `places` replaced, and the tensors of the others wrapped untracked.
pybind11::tuple wrapped_around(
    PyObject* args,
    const std::vector<Py_ssize_t>& places,
    const pybind11::tuple& chosen,
    int64_t level,
    const Replaced& replaced);

// The object with its tensors wrapped at the level of a grad or jvp, or unwrapped from it.
pybind11::object wrap_all(pybind11::handle object, int64_t level, const Replaced& replaced);
pybind11::object unwrap_all(pybind11::handle object, int64_t level, const Replaced& replaced);

// Calls a function unless it has been called before: torch registers some of its rules at the first
// call of a transform.
void load_once(bool& is_loaded, const char* module, const char* name);

// The calls, in call_grad.cpp, call_jvp.cpp and call_vmap.cpp. The number of arguments is not
// checked: each has a single caller.
using Call = pybind11::object(PyObject* const* passed);
Call call_along, call_grad, call_vjp, call_vjp_fn, call_vjp_of_leaves, call_jvp, call_vmap,
    call_vmap_of_leaves;

void bind_recorded(pybind11::module_& m);

} // namespace torchlayers
