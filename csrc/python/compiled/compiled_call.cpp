#include "python/compiled/compiled_call.h"

#include <structmember.h>
#include <torch/csrc/Exceptions.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/keys.h"
#include "core/stack.h"
#include "core/trace/call_recorder.h"
#include "python/callable.h"
#include "python/compiled/compiled_entry.h"
#include "python/compiled/guards.h"
#include "python/compiled/signature.h"
#include "python/function_modes.h"
#include "python/tree.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

// NOTE [Called at once]
// A compiled function is an instance of a Python class that derives from CompiledCall. Its calls
// come here and not to its __call__, which exists for Dynamo, because that can't see into C++. The
// interpreter calls the function in a slot of the type, which call_at_once() sets: a class with a
// __call__ has a slot that looks up the method and repacks the arguments. Calls with a known
// signature are run here, and all others by the method _otherwise.
struct CompiledCall {
  using Entries = std::vector<std::shared_ptr<const KnownCall>>;
  using Self = Callable<CompiledCall>;

  // Replaced, not modified: a call may be iterating over it.
  std::shared_ptr<const Entries> entries = std::make_shared<Entries>();

  // Whether nothing observes this thread's operators or calls; inference mode does not.
  static bool is_plain() {
    const auto included = thread_keys().included() | DispatchKeySet(DispatchKey::ADInplaceOrView);
    return mirror().empty() && included - kOurKeys - kTorchFuncKeys == c10::default_included_set &&
           !any_function_mode();
  }

  static PyObject* call(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
    HANDLE_TH_ERRORS
    if (C10_LIKELY(!is_observed())) {
      return run(self, args, flags, names);
    }
    const auto name = py::handle(self).attr("_name").cast<std::string>();
    const ObservedRange range(ObservedRange::Of::Compiled, name); // NOTE [Recorded calls]
    PyObject* result = run(self, args, flags, names);
    if (result == nullptr) {
      throw py::error_already_set(); // so that the range ends with an error
    }
    return result;
    END_HANDLE_TH_ERRORS
  }

  static PyObject* run(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
    const CompiledCall& held = Self::of(self);
    if (C10_LIKELY(is_plain())) {
      const auto entries = held.entries;
      const auto modes = CallModes::of_thread();
      c10::SmallVector<PyObject*, 24> leaves;
      Captured captured;
      for (const auto& entry : *entries) {
        if (entry->fits(modes, args, PyVectorcall_NARGS(flags), names, leaves, captured)) {
          const auto kept = entry;
          return kept->run(leaves, captured).release().ptr();
        }
      }
    }
    const py::object otherwise = py::handle(self).attr("_otherwise");
    return PyObject_Vectorcall(otherwise.ptr(), args, flags, names);
  }
};

PyObject* new_compiled_call(PyTypeObject* type, PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  return CompiledCall::Self::make(type);
  END_HANDLE_TH_ERRORS
}

int visit_compiled_call(PyObject* self, visitproc visit, void* arg) {
  const CompiledCall& held = CompiledCall::Self::of(self);
  Py_VISIT(Py_TYPE(self));
  // If a call is iterating over the entries, this object is not their only owner.
  if (held.entries && held.entries.use_count() == 1) {
    for (const auto& entry : *held.entries) {
      const int visited = entry.use_count() == 1 ? entry->visit(visit, arg) : 0;
      if (visited != 0) {
        return visited;
      }
    }
  }
  return 0;
}

int clear_compiled_call(PyObject* self) {
  CompiledCall& held = CompiledCall::Self::of(self);
  const auto entries = std::exchange(held.entries, std::make_shared<CompiledCall::Entries>());
  return 0;
}

void destroy_compiled_call(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  CompiledCall::Self::of(self).~CompiledCall();
  type->tp_free(self);
  Py_DECREF(type);
}

// add(entry, args, kwargs, is_static): the entry handles calls like this one. If C++ can't
// determine the signature, Python keeps handling them.
PyObject* add_entry(PyObject* self, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *entry = nullptr, *positional = nullptr, *keywords = nullptr, *places = nullptr;
  if (PyArg_ParseTuple(
          args,
          "OO!O!O!",
          &entry,
          &PyTuple_Type,
          &positional,
          &PyDict_Type,
          &keywords,
          &PyList_Type,
          &places) == 0) {
    return nullptr;
  }
  const py::object now = py::handle(entry).attr("captured_now")();
  if (now.is_none()) {
    Py_RETURN_NONE; // another thread has replaced a tensor
  }
  std::vector<at::Tensor> captured;
  for (const auto& tensor : now) {
    captured.push_back(tensor_of(tensor));
  }
  auto signature = Signature::of(
      py::reinterpret_borrow<py::tuple>(positional),
      py::reinterpret_borrow<py::dict>(keywords),
      py::handle(places).cast<std::vector<bool>>(),
      captured,
      py::handle(entry).attr("open").cast<std::vector<std::vector<size_t>>>());
  if (signature) {
    CompiledCall& held = CompiledCall::Self::of(self);
    // The newest first: the objects that it depends on are more likely to be alive.
    auto entries = std::make_shared<CompiledCall::Entries>(*held.entries);
    entries->insert(
        entries->begin(),
        std::make_shared<KnownCall>(
            *std::move(signature), py::reinterpret_borrow<py::object>(entry)));
    held.entries = std::move(entries);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* drop_entry(PyObject* self, PyObject* entry) {
  HANDLE_TH_ERRORS
  CompiledCall& held = CompiledCall::Self::of(self);
  auto entries = std::make_shared<CompiledCall::Entries>(*held.entries);
  std::erase_if(*entries, [entry](const auto& known) { return known->is_of(entry); });
  const auto before = std::exchange(held.entries, std::move(entries));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef compiled_call_methods[] = {
    {"_drop", &drop_entry, METH_O, "Removes an entry, which then handles no calls."},
    {"_add", &add_entry, METH_VARARGS, "Adds an entry, which then handles calls like this one."},
    {nullptr, nullptr, 0, nullptr}};

void call_at_once(const py::type& derived) {
  auto* type = reinterpret_cast<PyTypeObject*>(derived.ptr());
  type->tp_call = &PyVectorcall_Call;
  type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  PyType_Modified(type);
}

} // namespace

void bind_compiled_call(py::module_& m) {
  constexpr auto kFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  bind_guards(m);
  bind_compiled_entry(m);
  static PyType_Slot slots[] = {
      {Py_tp_doc,
       const_cast<char*>(
           "Base class of compiled functions: runs calls with a known signature, and passes others "
           "to the method _otherwise.")},
      {Py_tp_new, reinterpret_cast<void*>(&new_compiled_call)},
      {Py_tp_dealloc, reinterpret_cast<void*>(&destroy_compiled_call)},
      {Py_tp_traverse, reinterpret_cast<void*>(&visit_compiled_call)},
      {Py_tp_clear, reinterpret_cast<void*>(&clear_compiled_call)},
      {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
      {Py_tp_members, Callable<CompiledCall>::members()},
      {Py_tp_methods, compiled_call_methods},
      {0, nullptr}};
  static PyType_Spec call = {
      "torchlayers._C.CompiledCall",
      sizeof(Callable<CompiledCall>),
      0,
      kFlags | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_BASETYPE,
      slots};
  auto* type = PyType_FromSpec(&call);
  if (type == nullptr) {
    throw py::error_already_set();
  }
  m.attr("CompiledCall") = py::reinterpret_steal<py::object>(type);
  m.def("call_at_once", &call_at_once);
  m.def("torch_settings", &torch_settings);
}

} // namespace torchlayers
