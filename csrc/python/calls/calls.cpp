#include "python/calls/calls.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <algorithm>
#include <numeric>

#include "core/without_function_modes.h"
#include "layers/transforms.h"
#include "python/bindings.h"
#include "python/function_modes.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

// NOTE [Under torch.export] in torchlayers/core/tracing_state.py.
bool is_exporting() {
  constexpr auto kExport = c10::DispatchKey::PreDispatch;
  if (!any_function_mode()) { // nearly always
    return false;
  }
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return keys.included_.has(kExport) && !keys.excluded_.has(kExport);
}

bool are_all(PyObject* args, const std::vector<Py_ssize_t>& places) {
  return PyTuple_CheckExact(args) && std::ssize(places) == PyTuple_GET_SIZE(args) &&
         std::is_sorted(places.begin(), places.end());
}

// Under function modes: control flow may replace the arguments, as it does for operators
// (torchlayers/remat/ambient_state.py), and torch.export sees the call.
py::object called_under_modes(Call* call, PyObject* const* passed, Py_ssize_t count) {
  const auto seen = imported("torchlayers.remat.ambient_state", "apply_view_modes");
  std::vector<py::object> shown;
  std::vector<PyObject*> given;
  for (Py_ssize_t i = 0; i < count; ++i) {
    const auto argument = py::reinterpret_borrow<py::object>(passed[i]);
    const bool is_seen = i > 0 && (PyTuple_CheckExact(passed[i]) || PyDict_CheckExact(passed[i]) ||
                                   PyList_CheckExact(passed[i]) || is_tensor(argument));
    shown.push_back(is_seen ? py::object(seen(argument)) : argument);
    given.push_back(shown.back().ptr());
  }
  if (C10_LIKELY(!is_exporting())) {
    return call(given.data());
  }
  const auto again = py::cpp_function([&] { return call(given.data()); });
  return imported("torchlayers.core.tracing_state", "call_exported")(again);
}

// A call by Python's calling convention.
PyObject* called(Call* call, PyObject* const* passed, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (C10_LIKELY(!any_function_mode())) {
    return call(passed).release().ptr();
  }
  return called_under_modes(call, passed, count).release().ptr();
  END_HANDLE_TH_ERRORS
}

// The same for a function that does not call the user's.
PyObject* called_past_modes(Call* call, PyObject* const* passed, Py_ssize_t) {
  HANDLE_TH_ERRORS
  return call(passed).release().ptr();
  END_HANDLE_TH_ERRORS
}

// pybind11's argument conversion would take longer than all the rest of a call.
template <Call call, auto through = &called>
PyMethodDef method(const char* name) {
  constexpr auto run = [](PyObject*, PyObject* const* passed, Py_ssize_t count) {
    return through(call, passed, count);
  };
  return {
      name,
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(
          static_cast<PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t)>(run))),
      METH_FASTCALL,
      nullptr};
}

// The attribute, or a null object if there is none.
py::object attribute_of(PyObject* object, PyObject* name) {
  PyObject* value = nullptr;
  if (PyObject_GetOptionalAttr(object, name, &value) < 0) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(value);
}

void check(int result) {
  if (result != 0) {
    throw py::error_already_set();
  }
}

// wraps(wrapper, func, assigned, dropped): functools.update_wrapper, which written in Python takes
// twice as long as a call of vmap. `assigned` are the names of attributes to copy besides those in
// func's __dict__, of which the ones in `dropped` are left out.
py::object wraps(PyObject* const* passed) {
  static PyObject* dict_name = PyUnicode_InternFromString("__dict__");
  static PyObject* wrapped_name = PyUnicode_InternFromString("__wrapped__");
  PyObject *wrapper = passed[0], *func = passed[1], *assigned = passed[2], *dropped = passed[3];
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(assigned); ++i) {
    PyObject* name = PyTuple_GET_ITEM(assigned, i);
    if (const py::object value = attribute_of(func, name)) {
      check(PyObject_SetAttr(wrapper, name, value.ptr()));
    }
  }
  const py::object from = attribute_of(func, dict_name);
  const bool is_empty =
      !from || (PyDict_CheckExact(from.ptr()) && PyDict_GET_SIZE(from.ptr()) == 0);
  if (!is_empty) { // seldom: a module, or a function that was wrapped before
    const py::dict own = py::reinterpret_borrow<py::object>(wrapper).attr("__dict__");
    check(PyDict_Update(own.ptr(), from.ptr()));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(dropped); ++i) {
      PyObject* name = PyTuple_GET_ITEM(dropped, i);
      const int has = PyDict_Contains(own.ptr(), name);
      check(has < 0 ? has : 0);
      check(has > 0 ? PyDict_DelItem(own.ptr(), name) : 0);
    }
  }
  check(PyObject_SetAttr(wrapper, wrapped_name, func));
  return py::reinterpret_borrow<py::object>(wrapper);
}

} // namespace

std::vector<Py_ssize_t> Differentiated::places(Py_ssize_t count, bool may_be_none) const {
  std::vector<Py_ssize_t> places;
  PyObject* argnums = this->argnums().ptr();
  if (argnums == Py_None && may_be_none) {
    places.resize(static_cast<size_t>(count));
    std::iota(places.begin(), places.end(), 0);
    return places;
  }
  const bool are_many = PyTuple_CheckExact(argnums);
  for (Py_ssize_t i = 0; i < (are_many ? PyTuple_GET_SIZE(argnums) : 1); ++i) {
    const auto argnum = plain_int(are_many ? PyTuple_GET_ITEM(argnums, i) : argnums);
    const Py_ssize_t place = argnum.value_or(count) + (argnum && *argnum < 0 ? count : 0);
    if (place < 0 || place >= count || std::ranges::find(places, place) != places.end()) {
      places.clear();
      break;
    }
    places.push_back(place);
  }
  if (places.empty()) { // Python raises an error, or converts an int subclass
    const auto positions = imported("torchlayers.core.pytree", "positions");
    return positions(field(0), this->argnums(), count).cast<std::vector<Py_ssize_t>>();
  }
  return places;
}

std::pair<py::object, py::object> Differentiated::split_aux(py::object output) const {
  if (!has_aux()) {
    return {std::move(output), py::none()};
  }
  const py::tuple both = imported("torchlayers.core.pytree", "split_aux")(field(0), output);
  return {both[0], both[1]};
}

py::object call(py::handle func, const py::object& args, PyObject* kwargs) {
  auto result =
      py::reinterpret_steal<py::object>(PyObject_Call(func.ptr(), py::tuple(args).ptr(), kwargs));
  if (!result) {
    if (!PyCallable_Check(func.ptr())) {
      PyErr_Clear();
      imported("torchlayers.core.layer_stack", "require_function")(func);
    }
    throw py::error_already_set();
  }
  return result;
}

std::optional<int64_t> plain_int(py::handle object) {
  if (!PyLong_CheckExact(object.ptr())) {
    return std::nullopt;
  }
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  return overflow == 0 ? std::optional(value) : std::nullopt;
}

py::object zeros_like(py::handle tensor) {
  return imported("torch", "zeros_like")(tensor);
}

py::tuple picked(PyObject* args, const std::vector<Py_ssize_t>& places) {
  if (are_all(args, places)) {
    return py::reinterpret_borrow<py::tuple>(args);
  }
  py::tuple chosen(places.size());
  for (size_t i = 0; i < places.size(); ++i) {
    chosen[i] = py::handle(PyTuple_GET_ITEM(args, places[i]));
  }
  return chosen;
}

py::tuple wrapped_around(
    PyObject* args,
    const std::vector<Py_ssize_t>& places,
    const py::tuple& chosen,
    int64_t level,
    const Replaced& replaced) {
  if (are_all(args, places)) {
    return chosen;
  }
  py::tuple wrapped(PyTuple_GET_SIZE(args));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
    const auto place = std::find(places.begin(), places.end(), i);
    wrapped[i] = place == places.end() ? wrap_all(PyTuple_GET_ITEM(args, i), level, replaced)
                                       : py::object(chosen[place - places.begin()]);
  }
  return wrapped;
}

py::object wrap_all(py::handle object, int64_t level, const Replaced& replaced) {
  if (const auto step = replaced["_wrap_all_tensors"]) {
    return step(object, level);
  }
  return with_tensors(object, [](const at::Tensor& tensor) { return wrap_argument(tensor); });
}

py::object unwrap_all(py::handle object, int64_t level, const Replaced& replaced) {
  const auto step = replaced["_undo_create_differentiable"];
  if (step && !object.is_none()) {
    return step(object, level);
  }
  return with_tensors(object, [&](const at::Tensor& tensor) { return unwrap(tensor, level); });
}

namespace {

// Ignores Python's warnings while it lives.
class WithoutWarnings {
 public:
  WithoutWarnings() : ignored_(imported("warnings", "catch_warnings")()) {
    ignored_.attr("__enter__")();
    imported("warnings", "simplefilter")("ignore");
  }
  WithoutWarnings(const WithoutWarnings&) = delete;
  WithoutWarnings& operator=(const WithoutWarnings&) = delete;
  ~WithoutWarnings() {
    ignored_.attr("__exit__")(py::none(), py::none(), py::none());
  }

 private:
  py::object ignored_;
};

} // namespace

// torch warns its users of torch.jit, by which it has written some of what is loaded. And
// torch.export traces by a mode, which would see what loads torch's batching rules.
void load_once(bool& is_loaded, const char* module, const char* name) {
  if (!is_loaded) {
    const WithoutWarnings quiet;
    const WithoutFunctionModes untraced;
    imported(module, name)();
    is_loaded = true;
  }
}

void bind_calls(py::module_& m) {
  m.def("is_exporting", &is_exporting);
  m.def("default_device", &default_device);
  m.def("any_function_mode", &any_function_mode);
  static PyMethodDef methods[] = {
      method<call_grad>("call_grad"),
      method<call_vjp>("call_vjp"),
      method<call_vjp_fn>("call_vjp_fn"),
      method<call_vjp_of_leaves>("call_vjp_of_leaves"),
      method<call_jvp>("call_jvp"),
      method<call_along>("call_along"),
      method<call_vmap>("call_vmap"),
      method<call_vmap_of_leaves>("call_vmap_of_leaves"),
      method<wraps, &called_past_modes>("wraps"),
      {nullptr, nullptr, 0, nullptr}};
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) {
    throw py::error_already_set();
  }
  bind_recorded(m);
}

} // namespace torchlayers
