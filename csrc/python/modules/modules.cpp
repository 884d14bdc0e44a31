#include "python/modules/modules.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include "core/errors.h"
#include "python/modules/module_call.h"
#include "python/modules/module_forward.h"
#include "python/tree.h"

namespace torchlayers {
namespace modules {
namespace {

namespace py = pybind11;

// Rare cases, which are handled in Python.
py::object in_python(const char* name) {
  return imported("torchlayers.modules.functional_call", name);
}

py::object as_dict(PyObject* given) {
  return PyDict_CheckExact(given) ? borrowed(given) : in_python("as_one")(py::handle(given));
}

py::object as_tuple(PyObject* args) {
  if (PyTuple_Check(args)) {
    return borrowed(args);
  }
  return args == Py_None ? py::tuple() : py::make_tuple(borrowed(args));
}

// Null if there are none.
py::object as_keywords(PyObject* kwargs) {
  if (kwargs == Py_None) {
    return {};
  }
  return PyDict_Check(kwargs) ? borrowed(kwargs) : in_python("as_keywords")(py::handle(kwargs));
}

bool runs_on_later(PyObject* result) {
  return PyGen_CheckExact(result) || PyCoro_CheckExact(result) || PyAsyncGen_CheckExact(result);
}

void refuse_tracing() {
  if (torch::jit::tracer::isTracing()) {
    raise("functional_call: can't be used inside torch.jit.trace.");
  }
}

// See modules.h.
PyObject* call_module(PyObject*, PyObject* const* passed, Py_ssize_t) {
  HANDLE_TH_ERRORS
  refuse_tracing();
  PyObject *module = passed[0], *tie_weights = passed[4], *strict = passed[5],
           *settings = passed[6];
  const py::object given = as_dict(passed[1]), args = as_tuple(passed[2]),
                   kwargs = as_keywords(passed[3]);
  Call call(module, settings, PyObject_IsTrue(tie_weights) == 1, PyObject_IsTrue(strict) == 1);
  if (!call.take(given.ptr())) {
    return in_python("call_with_attributes")(
               py::handle(module),
               given,
               args,
               kwargs ? kwargs : py::none(),
               py::handle(tie_weights),
               py::handle(settings))
        .release()
        .ptr();
  }
  py::object result = call.run(call_of, module, args.ptr(), kwargs.ptr(), given.ptr());
  if (runs_on_later(result.ptr())) {
    const auto later = in_python("resumed");
    result =
        later(result, py::handle(module), given, py::handle(tie_weights), py::handle(settings));
  }
  return result.release().ptr();
  END_HANDLE_TH_ERRORS
}

// See modules.h.
PyObject* run_module(PyObject*, PyObject* const* passed, Py_ssize_t) {
  HANDLE_TH_ERRORS
  refuse_tracing();
  PyObject *func = passed[1], *given = passed[2], *args = passed[3], *kwargs = passed[4];
  Call call(passed[0], passed[6], PyObject_IsTrue(passed[5]) == 1, /*strict=*/false);
  if (!call.take(given)) {
    raise("functional_call: the module has changed, and no longer has all of the given tensors.");
  }
  PyObject* keywords = kwargs == Py_None ? nullptr : kwargs;
  return call.run(PyObject_Call, func, args, keywords, given).release().ptr();
  END_HANDLE_TH_ERRORS
}

// unplanned_names(module, given): the names that are neither a parameter's nor a buffer's.
PyObject* unplanned_names(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  const auto plan = plan_of(given[0]);
  py::list names;
  PyObject *name = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(given[1], &at, &name, &value) != 0;) {
    if (plan->find(name) >= plan->slots().size()) {
      names.append(borrowed(name));
    }
  }
  return names.release().ptr();
  END_HANDLE_TH_ERRORS
}

// with_tensors_put_in(func): a wrapper that calls func with the tensors that are in modules now.
PyObject* with_tensors_put_in(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  auto func = borrowed(given[0]);
  auto replacements = put_in_now();
  if (replacements.empty()) {
    return func.release().ptr();
  }
  const auto call = [func, replacements](const py::args& args, const py::kwargs& kwargs) {
    const PutInAgain in_modules(replacements);
    return func(*args, **kwargs);
  };
  return py::cpp_function(call).release().ptr();
  END_HANDLE_TH_ERRORS
}

template <PyObject* (*Function)(PyObject*, PyObject* const*, Py_ssize_t)>
PyMethodDef fast(const char* name) {
  return {
      name,
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Function)),
      METH_FASTCALL,
      nullptr};
}

} // namespace
} // namespace modules

void bind_modules(pybind11::module_& m) {
  static PyMethodDef methods[] = {
      modules::fast<modules::call_module>("call_module"),
      modules::fast<modules::run_module>("run_module"),
      modules::fast<modules::unplanned_names>("unplanned_names"),
      modules::fast<modules::with_tensors_put_in>("with_tensors_put_in"),
      {nullptr, nullptr, 0, nullptr}};
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) {
    throw pybind11::error_already_set();
  }
}

} // namespace torchlayers
