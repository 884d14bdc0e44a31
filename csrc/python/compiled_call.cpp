#include "python/compiled_call.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <structmember.h>
#include <torch/csrc/Exceptions.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/recording.h"
#include "python/callable.h"
#include "python/program.h"
#include "python/signature.h"
#include "python/tree.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

// What runs for one signature, as Python makes it: torchlayers/compiled/call.py derives from it.
struct CompiledEntry {
  PyObject_HEAD PyObject* run; // may be replaced at any time
  long long calls;
  char is_recorded; // autograd has to see it run

  static CompiledEntry& of(py::handle object) {
    return *reinterpret_cast<CompiledEntry*>(object.ptr());
  }
};

int visit_entry(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(CompiledEntry::of(self).run);
  return 0;
}

int clear_entry(PyObject* self) {
  Py_CLEAR(CompiledEntry::of(self).run);
  return 0;
}

void destroy_entry(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear_entry(self);
  type->tp_free(self);
  Py_DECREF(type);
}

// Where a leaf of the result comes from: torchlayers/compiled/record.py.
struct ResultLeaf {
  enum class Source { Computed, Argument, Captured, Constant };
  Source source;
  size_t index = 0;
  py::object constant;

  static ResultLeaf of(const py::tuple& output) {
    const auto source = output[0].cast<std::string>();
    if (source == "constant") {
      return {Source::Constant, 0, output[1]};
    }
    const auto index = output[1].cast<size_t>();
    if (source == "computed") {
      return {Source::Computed, index, {}};
    }
    TORCH_INTERNAL_ASSERT(source == "argument" || source == "captured", source);
    return {source == "argument" ? Source::Argument : Source::Captured, index, {}};
  }
};

// The structure that torch.utils._pytree names.
Structure structure_of(const py::object& spec) {
  const auto count = spec.attr("num_leaves").cast<size_t>();
  const Leaves leaves(count, py::none());
  Tree tree = Tree::of(imported("torchlayers.tree", "unflatten")(leaves, spec));
  return tree.leaves.size() == count ? std::move(tree.structure) : Structure(spec);
}

// An entry, and what C++ has to know of it to run it.
class KnownCall {
 public:
  KnownCall(Signature signature, py::object entry)
      : signature_(std::move(signature)), entry_(std::move(entry)) {
    for (const auto& tensor : entry_.attr("captured")) {
      captured_objects_.push_back(py::reinterpret_borrow<py::object>(tensor));
      captured_.push_back(tensor_of(tensor));
    }
    for (const auto& output : entry_.attr("outputs")) {
      outputs_.push_back(ResultLeaf::of(py::reinterpret_borrow<py::tuple>(output)));
    }
    structure_ = structure_of(entry_.attr("out_spec"));
  }

  bool fits(
      const CallModes& modes,
      PyObject* const* args,
      Py_ssize_t count,
      PyObject* names,
      c10::SmallVectorImpl<PyObject*>& leaves) const {
    leaves.clear();
    return signature_.fits(modes, args, count, names, leaves) && signature_.fits(captured_);
  }

  py::object run(const c10::SmallVectorImpl<PyObject*>& leaves) const {
    // Another thread may change the containers that hold them.
    Leaves given;
    given.reserve(leaves.size());
    for (PyObject* leaf : leaves) {
      given.push_back(py::reinterpret_borrow<py::object>(leaf));
    }
    CompiledEntry& entry = CompiledEntry::of(entry_);
    entry.calls += 1;
    const auto run = py::reinterpret_borrow<py::object>(entry.run);
    const auto program = program_of(run);
    const at::AutoGradMode recorded(entry.is_recorded != 0 && at::GradMode::is_enabled());
    const Leaves computed = program ? by_program(*program, given) : by_python(run, given);
    return together(given, computed);
  }

  int visit(visitproc visit, void* arg) const {
    Py_VISIT(entry_.ptr());
    for (const auto& tensor : captured_objects_) {
      Py_VISIT(tensor.ptr());
    }
    for (const auto& output : outputs_) {
      Py_VISIT(output.constant.ptr());
    }
    const int visited = signature_.visit(visit, arg);
    return visited != 0 ? visited : structure_.visit(visit, arg);
  }

 private:
  Leaves by_program(const compiled::Program& program, const Leaves& given) const {
    torch::jit::Stack stack;
    stack.reserve(std::max(given.size() + captured_.size(), program.num_outputs()));
    for (const auto& leaf : given) {
      if (is_tensor(leaf)) {
        stack.emplace_back(tensor_of(leaf));
      }
    }
    stack.insert(stack.end(), captured_.begin(), captured_.end());
    run_program(program, stack);
    Leaves computed;
    computed.reserve(stack.size());
    for (auto& value : stack) {
      computed.push_back(object_of_value(std::move(value)));
    }
    return computed;
  }

  Leaves by_python(const py::object& run, const Leaves& given) const {
    py::list tensors;
    for (const auto& leaf : given) {
      if (is_tensor(leaf)) {
        tensors.append(leaf);
      }
    }
    for (const auto& tensor : captured_objects_) {
      tensors.append(tensor);
    }
    auto result = py::reinterpret_steal<py::object>(PyObject_CallOneArg(run.ptr(), tensors.ptr()));
    const auto items = py::reinterpret_steal<py::object>(
        result ? PySequence_Fast(result.ptr(), "torchlayers: a runner returns a list") : nullptr);
    if (!items) {
      throw py::error_already_set();
    }
    Leaves computed;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.ptr()); ++i) {
      computed.push_back(
          py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(items.ptr(), i)));
    }
    return computed;
  }

  py::object together(const Leaves& given, const Leaves& computed) const {
    Leaves results;
    results.reserve(outputs_.size());
    for (const auto& output : outputs_) {
      switch (output.source) {
        case ResultLeaf::Source::Computed:
          results.push_back(computed.at(output.index));
          break;
        case ResultLeaf::Source::Argument:
          results.push_back(given.at(output.index));
          break;
        case ResultLeaf::Source::Captured:
          results.push_back(captured_objects_.at(output.index));
          break;
        case ResultLeaf::Source::Constant:
          results.push_back(output.constant);
          break;
      }
    }
    return structure_.with(results);
  }

  Signature signature_;
  py::object entry_;
  std::vector<at::Tensor> captured_;
  Leaves captured_objects_;
  std::vector<ResultLeaf> outputs_;
  Structure structure_;
};

// The calls of one compiled function: those whose signature is known are run here, and all others
// are Python's.
struct CompiledCall {
  using Entries = std::vector<std::shared_ptr<const KnownCall>>;
  using Self = Callable<CompiledCall>;

  py::object otherwise;
  // Replaced, not changed: a call may be looking through it.
  std::shared_ptr<const Entries> entries = std::make_shared<Entries>();

  // Nobody looks at the operators of this thread, or at the calls.
  static bool is_plain() {
    return nothing_is_below() && at::impl::PythonTorchFunctionTLS::stack_len() == 0;
  }

  static PyObject* call(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
    HANDLE_TH_ERRORS
    const CompiledCall& held = Self::of(self);
    if (C10_LIKELY(is_plain())) {
      const auto entries = held.entries;
      const auto modes = CallModes::of_thread();
      c10::SmallVector<PyObject*, 24> leaves;
      for (const auto& entry : *entries) {
        if (entry->fits(modes, args, PyVectorcall_NARGS(flags), names, leaves)) {
          const auto kept = entry;
          return kept->run(leaves).release().ptr();
        }
      }
    }
    return PyObject_Vectorcall(held.otherwise.ptr(), args, flags, names);
    END_HANDLE_TH_ERRORS
  }
};

PyObject* new_compiled_call(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject* otherwise = nullptr;
  if (PyArg_ParseTuple(args, "O", &otherwise) == 0) {
    return nullptr;
  }
  return CompiledCall::Self::make(
      type, CompiledCall{py::reinterpret_borrow<py::object>(otherwise)});
  END_HANDLE_TH_ERRORS
}

int visit_compiled_call(PyObject* self, visitproc visit, void* arg) {
  const CompiledCall& held = CompiledCall::Self::of(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(held.otherwise.ptr());
  // What a call is looking through is not this object's alone.
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
  const auto otherwise = std::move(held.otherwise);
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

// add(entry, args, kwargs, is_static): calls like this one are the entry's. Where C++ can't tell
// them they stay Python's.
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
  std::vector<at::Tensor> captured;
  for (const auto& tensor : py::handle(entry).attr("captured")) {
    captured.push_back(tensor_of(tensor));
  }
  auto signature = Signature::of(
      py::reinterpret_borrow<py::tuple>(positional),
      py::reinterpret_borrow<py::dict>(keywords),
      py::handle(places).cast<std::vector<bool>>(),
      captured);
  if (signature) {
    CompiledCall& held = CompiledCall::Self::of(self);
    auto entries = std::make_shared<CompiledCall::Entries>(*held.entries);
    entries->push_back(
        std::make_shared<KnownCall>(
            *std::move(signature), py::reinterpret_borrow<py::object>(entry)));
    held.entries = std::move(entries);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef compiled_call_methods[] = {
    {"add", &add_entry, METH_VARARGS, "Calls like this one are the entry's from now on."},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef entry_members[] = {
    {"run", T_OBJECT_EX, offsetof(CompiledEntry, run), 0, "What is called with a list of tensors."},
    {"calls", T_LONGLONG, offsetof(CompiledEntry, calls), 0, "How often it ran."},
    {"is_recorded",
     T_BOOL,
     offsetof(CompiledEntry, is_recorded),
     0,
     "Whether autograd sees it run."},
    {nullptr, 0, 0, 0, nullptr}};

void bind_compiled_type(py::module_& m, const char* name, PyType_Spec& spec) {
  auto* type = PyType_FromSpec(&spec);
  if (type == nullptr) {
    throw py::error_already_set();
  }
  m.attr(name) = py::reinterpret_steal<py::object>(type);
}

} // namespace

void bind_compiled_call(py::module_& m) {
  constexpr auto kFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  static PyType_Slot entry_slots[] = {
      {Py_tp_doc, const_cast<char*>("What a compiled function runs for one signature.")},
      {Py_tp_new, reinterpret_cast<void*>(&PyType_GenericNew)},
      {Py_tp_dealloc, reinterpret_cast<void*>(&destroy_entry)},
      {Py_tp_traverse, reinterpret_cast<void*>(&visit_entry)},
      {Py_tp_clear, reinterpret_cast<void*>(&clear_entry)},
      {Py_tp_members, entry_members},
      {0, nullptr}};
  static PyType_Spec entry = {
      "torchlayers._C.CompiledEntry",
      sizeof(CompiledEntry),
      0,
      kFlags | Py_TPFLAGS_BASETYPE,
      entry_slots};
  bind_compiled_type(m, "CompiledEntry", entry);

  static PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>("The calls of a compiled function; others are `otherwise`'s.")},
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
      kFlags | Py_TPFLAGS_HAVE_VECTORCALL,
      slots};
  bind_compiled_type(m, "CompiledCall", call);
}

} // namespace torchlayers
