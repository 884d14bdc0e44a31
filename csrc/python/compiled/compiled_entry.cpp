#include "python/compiled/compiled_entry.h"

#include <structmember.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/trace/trace.h"
#include "python/compiled/program.h"
#include "python/trace.h"

namespace torchlayers {

namespace py = pybind11;

namespace {

// The C++ part of an entry, from which torchlayers/compiler/runtime/call.py derives a class.
struct CompiledEntry {
  PyObject_HEAD PyObject* run; // may be replaced at any time
  long long calls;
  char is_recorded; // it has to run under autograd

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

PyMemberDef compiled_entry_members[] = {
    {"run",
     T_OBJECT_EX,
     offsetof(CompiledEntry, run),
     0,
     "The function, which takes a list of tensors."},
    {"calls", T_LONGLONG, offsetof(CompiledEntry, calls), 0, "The number of calls so far."},
    {"is_recorded",
     T_BOOL,
     offsetof(CompiledEntry, is_recorded),
     0,
     "Whether it runs under autograd."},
    {nullptr, 0, 0, 0, nullptr}};

ResultLeaf result_leaf_of(const py::tuple& output) {
  const auto source = output[0].cast<std::string>();
  if (source == "constant") {
    return {ResultLeaf::Source::Constant, 0, output[1]};
  }
  const auto index = output[1].cast<size_t>();
  if (source == "computed") {
    return {ResultLeaf::Source::Computed, index, {}};
  }
  if (source == "number") {
    return {ResultLeaf::Source::Number, index, {}};
  }
  TORCH_INTERNAL_ASSERT(source == "argument" || source == "captured", source);
  return {
      source == "argument" ? ResultLeaf::Source::Argument : ResultLeaf::Source::Captured,
      index,
      {}};
}

py::object number_in(const at::Tensor& tensor) {
  if (tensor.is_floating_point()) {
    return py::float_(tensor.item<double>());
  }
  return py::int_(tensor.item<int64_t>());
}

// Converts a structure of torch.utils._pytree.
Structure structure_of(const py::object& spec) {
  const auto count = spec.attr("num_leaves").cast<size_t>();
  const Leaves leaves(count, py::none());
  Tree tree = Tree::of(imported("torchlayers.core.pytree", "unflatten")(leaves, spec));
  return tree.leaves.size() == count ? std::move(tree.structure) : Structure(spec);
}

} // namespace

Carried::Carried(const py::object& carried) : now_(carried.attr("now")) {
  const py::object position = carried.attr("position");
  position_ = position.is_none() ? -1 : position.cast<Py_ssize_t>();
  if (position_ < 0) {
    return;
  }
  for (const auto& place : carried.attr("places")) {
    const py::object holder = place.attr("holder");
    const bool is_simple =
        PyDict_Check(holder.ptr()) || PyList_Check(holder.ptr()) || PyCell_Check(holder.ptr());
    if (!is_simple || py::hasattr(carried, "expression") || py::len(place.attr("path")) != 0) {
      places_.clear();
      return;
    }
    places_.push_back({holder, place.attr("key")});
  }
}

PyObject* Carried::Place::read() const {
  PyObject* of = holder.ptr();
  if (PyCell_Check(of)) {
    return PyCell_GET(of);
  }
  if (PyDict_Check(of)) {
    PyObject* value = PyDict_GetItemWithError(of, key.ptr());
    if (value == nullptr && PyErr_Occurred() != nullptr) {
      throw py::error_already_set();
    }
    return value;
  }
  auto index = key.cast<Py_ssize_t>();
  index += index < 0 ? PyList_GET_SIZE(of) : 0; // from the end
  return index >= 0 && index < PyList_GET_SIZE(of) ? PyList_GET_ITEM(of, index) : nullptr;
}

bool Carried::read(Captured& captured) const {
  py::object value;
  if (places_.empty()) {
    value = now_();
  } else {
    value = py::reinterpret_borrow<py::object>(places_.front().read());
    for (const Place& place : places_) {
      if (place.read() != value.ptr()) {
        return false;
      }
    }
  }
  // The signature compares its metadata.
  if (!value || !THPVariable_CheckExact(value.ptr())) {
    return false;
  }
  if (position_ >= 0) {
    captured.tensors.at(position_) = tensor_of(value);
    captured.objects.at(position_) = std::move(value);
  }
  return true;
}

int Carried::visit(visitproc visit, void* arg) const {
  Py_VISIT(now_.ptr());
  for (const Place& place : places_) {
    Py_VISIT(place.holder.ptr());
    Py_VISIT(place.key.ptr());
  }
  return 0;
}

KnownCall::KnownCall(Signature signature, py::object entry)
    : signature_(std::move(signature)),
      entry_(std::move(entry)),
      guards_object_(entry_.attr("guards")),
      guards_(guards_of(guards_object_)),
      admits_(entry_.attr("admits")) {
  for (const auto& tensor : entry_.attr("captured")) {
    captured_.objects.push_back(py::reinterpret_borrow<py::object>(tensor));
    captured_.tensors.push_back(tensor.is_none() ? at::Tensor() : tensor_of(tensor));
  }
  for (const auto& carried : entry_.attr("carried")) {
    carried_.emplace_back(py::reinterpret_borrow<py::object>(carried));
  }
  for (const auto& hooked : entry_.attr("hooked")) {
    unhooked_.push_back(tensor_of(hooked.attr("tensor")));
  }
  for (const auto& output : entry_.attr("outputs")) {
    outputs_.push_back(result_leaf_of(py::reinterpret_borrow<py::tuple>(output)));
  }
  structure_ = structure_of(entry_.attr("out_spec"));
}

bool KnownCall::any_hook() const {
  return std::any_of(unhooked_.begin(), unhooked_.end(), [](const at::Tensor& tensor) {
    return !torch::autograd::impl::hooks(tensor).empty();
  });
}

bool KnownCall::carries(Captured& now) const {
  now = captured_;
  return std::all_of(
             carried_.begin(),
             carried_.end(),
             [&now](const Carried& carried) { return carried.read(now); }) &&
         signature_.fits(now.tensors);
}

bool KnownCall::admits(const c10::SmallVectorImpl<PyObject*>& leaves, const Captured& now) const {
  auto numbers =
      signature_.open_numbers(leaves, carried_.empty() ? captured_.tensors : now.tensors);
  if (numbers == admitted_) {
    return true;
  }
  if (!admits_(py::tuple(py::cast(numbers))).cast<bool>()) {
    return false;
  }
  admitted_ = std::move(numbers);
  return true;
}

py::object KnownCall::run(
    const c10::SmallVectorImpl<PyObject*>& leaves, const Captured& now) const {
  const Captured& captured = carried_.empty() ? captured_ : now;
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
  const Leaves computed =
      program ? by_program(*program, given, captured) : by_python(run, given, captured);
  if (C10_UNLIKELY(tracing)) {
    note_run(entry_);
  }
  return together(given, computed, captured);
}

int KnownCall::visit(visitproc visit, void* arg) const {
  Py_VISIT(entry_.ptr());
  Py_VISIT(guards_object_.ptr());
  Py_VISIT(admits_.ptr());
  for (const auto& tensor : captured_.objects) {
    Py_VISIT(tensor.ptr());
  }
  for (const auto& carried : carried_) {
    if (const int visited = carried.visit(visit, arg); visited != 0) {
      return visited;
    }
  }
  for (const auto& output : outputs_) {
    Py_VISIT(output.constant.ptr());
  }
  const int visited = signature_.visit(visit, arg);
  return visited != 0 ? visited : structure_.visit(visit, arg);
}

Leaves KnownCall::by_program(
    const compiled::Program& program, const Leaves& given, const Captured& captured) {
  torch::jit::Stack stack;
  stack.reserve(std::max(given.size() + captured.tensors.size(), program.num_outputs()));
  for (const auto& leaf : given) {
    if (is_tensor(leaf)) {
      stack.emplace_back(tensor_of(leaf));
    }
  }
  stack.insert(stack.end(), captured.tensors.begin(), captured.tensors.end());
  run_program(program, stack);
  Leaves computed;
  computed.reserve(stack.size());
  for (auto& value : stack) {
    computed.push_back(object_of_value(std::move(value)));
  }
  return computed;
}

Leaves KnownCall::by_python(const py::object& run, const Leaves& given, const Captured& captured) {
  py::list tensors;
  for (const auto& leaf : given) {
    if (is_tensor(leaf)) {
      tensors.append(leaf);
    }
  }
  for (const auto& tensor : captured.objects) {
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

py::object KnownCall::together(
    const Leaves& given, const Leaves& computed, const Captured& captured) const {
  Leaves results;
  results.reserve(outputs_.size());
  for (const auto& output : outputs_) {
    switch (output.source) {
      case ResultLeaf::Source::Computed:
        results.push_back(computed.at(output.index));
        break;
      case ResultLeaf::Source::Number:
        results.push_back(number_in(tensor_of(computed.at(output.index))));
        break;
      case ResultLeaf::Source::Argument:
        results.push_back(given.at(output.index));
        break;
      case ResultLeaf::Source::Captured:
        results.push_back(captured.objects.at(output.index));
        break;
      case ResultLeaf::Source::Constant:
        results.push_back(output.constant);
        break;
    }
  }
  return structure_.with(results);
}

void bind_compiled_entry(py::module_& m) {
  static PyType_Slot entry_slots[] = {
      {Py_tp_doc,
       const_cast<char*>("An entry of a compiled function: the program for one signature.")},
      {Py_tp_new, reinterpret_cast<void*>(&PyType_GenericNew)},
      {Py_tp_dealloc, reinterpret_cast<void*>(&destroy_entry)},
      {Py_tp_traverse, reinterpret_cast<void*>(&visit_entry)},
      {Py_tp_clear, reinterpret_cast<void*>(&clear_entry)},
      {Py_tp_members, compiled_entry_members},
      {0, nullptr}};
  static PyType_Spec entry = {
      "torchlayers._C.CompiledEntry",
      sizeof(CompiledEntry),
      0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
      entry_slots};
  auto* type = PyType_FromSpec(&entry);
  if (type == nullptr) {
    throw py::error_already_set();
  }
  m.attr("CompiledEntry") = py::reinterpret_steal<py::object>(type);
}

} // namespace torchlayers
