#include "python/python_layer.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include <utility>

#include "core/args.h"
#include "core/errors.h"
#include "python/function_modes.h"
#include "python/operators/arguments.h"
#include "python/tree.h"
#include "values/wrapper.h"

namespace torchlayers {

namespace py = pybind11;

namespace {

using Objects = c10::SmallVector<PyObject*, 8>;

// torchlayers.LayerTensor
PyTypeObject* class_of_tensors() {
  static auto* type = new py::object(
      imported("torchlayers.transforms.layers.layer_tensor", "LayerTensor")); // never freed
  return reinterpret_cast<PyTypeObject*>(type->ptr());
}

bool is_layer_tensor(py::handle object) {
  return Py_TYPE(object.ptr()) == class_of_tensors();
}

void set_attribute(py::handle object, PyObject* name, py::handle value) {
  if (PyObject_SetAttr(object.ptr(), name, value.ptr()) != 0) {
    throw py::error_already_set();
  }
}

// Makes a new wrapper of the layer one of its tensors. The class of the wrapper's Python object is
// set, which torch keeps for as long as the wrapper lives, so that this costs no operator.
py::object as_layer_tensor(const at::Tensor& wrapper, py::handle layer, py::handle parts) {
  static PyObject* const class_name = PyUnicode_InternFromString("__class__");
  static PyObject* const layer_name = PyUnicode_InternFromString("layer");
  static PyObject* const parts_name = PyUnicode_InternFromString("parts");
  py::object tensor = object_of(wrapper);
  set_attribute(tensor, class_name, reinterpret_cast<PyObject*>(class_of_tensors()));
  set_attribute(tensor, layer_name, layer);
  set_attribute(tensor, parts_name, parts);
  return tensor;
}

bool is_default(const c10::IValue& value, const c10::Argument& argument) {
  const c10::IValue& usual = *argument.default_value();
  if (value.isNone() || usual.isNone()) {
    return value.isNone() && usual.isNone();
  }
  return !value.isTensor() && !usual.isTensor() && value.tagKind() == usual.tagKind() &&
         value == usual;
}

// Replaces the arguments by the results that Python returned, if it did not decline.
bool take_results(const Operator& op, Args& args, const py::object& returned) {
  if (returned.ptr() == Py_NotImplemented) {
    return false;
  }
  if (op.num_returns == 1 && is_tensor(returned)) {
    at::Tensor result = tensor_of(returned);
    drop(args, op.num_args);
    args.emplace_back(std::move(result));
    return true;
  }
  Args results;
  if (op.num_returns > 0) {
    results = results_from_python(op, returned, "the rule of");
  }
  drop(args, op.num_args);
  args.insert(args.end(), results.begin(), results.end());
  return true;
}

} // namespace

PythonLayer::PythonLayer(
    const py::object& layer, std::string name, bool sees_all, bool lifts_plainly)
    : CustomLayer(std::move(name), sees_all),
      lifts_plainly_(lifts_plainly),
      table_(layer.attr("_rules")),
      rules_(table_.attr("cache").cast<std::shared_ptr<RuleCache>>()),
      weak_(py::weakref(layer)) {}

PythonLayer::~PythonLayer() {
  const py::gil_scoped_acquire gil;
  weak_ = py::object();
  layer_ = py::object();
  table_ = py::object();
}

bool PythonLayer::has_rule_for(const Operator& op) const {
  const py::gil_scoped_acquire gil;
  return object().attr("has_rule")(overload_of(op)).cast<bool>();
}

void PythonLayer::resume() {
  const py::gil_scoped_acquire gil;
  const py::object layer = weak_();
  layer_ = layer.is_none() ? py::object() : layer;
}

void PythonLayer::suspend() {
  const py::gil_scoped_acquire gil;
  layer_ = py::object();
}

std::shared_ptr<void> PythonLayer::object_in_python() const {
  const py::gil_scoped_acquire gil;
  const auto drop = [](void* object) {
    const py::gil_scoped_acquire gil;
    Py_DECREF(static_cast<PyObject*>(object));
  };
  return layer_ ? std::shared_ptr<void>(py::object(layer_).release().ptr(), drop) : nullptr;
}

std::map<std::string, c10::IValue> PythonLayer::metadata() const {
  const py::gil_scoped_acquire gil;
  auto line = layer_ ? layer_.attr("_entered_at")().cast<std::string>() : std::string();
  return line.empty() ? std::map<std::string, c10::IValue>()
                      : std::map<std::string, c10::IValue>{{"entered_at", std::move(line)}};
}

const py::object& PythonLayer::object() const {
  if (!layer_) {
    raise_as(ErrorClass::EscapedTensor, "{} has ended, and can't process operators.", name());
  }
  return layer_;
}

py::object PythonLayer::tensor(py::object value, py::object parts) const {
  if (!*life()) {
    weak_().attr("_active")(); // raises TransformError
  }
  if (any_function_mode()) { // in a branch or loop body of control flow
    const py::tuple seen = imported("torchlayers.remat.ambient_state", "apply_view_modes")(
        py::make_tuple(std::move(value), std::move(parts)));
    value = seen[0];
    parts = seen[1];
  }
  if (!is_tensor(value)) {
    throw py::type_error("torchlayers: the value of a layer's tensor is a tensor.");
  }
  return as_layer_tensor(new_wrapper(tensor_of(value), parts), object(), parts);
}

at::Tensor PythonLayer::owned_or_plain(const at::Tensor& tensor) const {
  return follows(tensor) && !owned(tensor) ? wrapper_of(tensor)->value() : tensor;
}

py::object PythonLayer::owned(const at::Tensor& wrapper) const {
  py::object tensor = object_of(wrapper);
  if (is_layer_tensor(tensor)) {
    return tensor;
  }
  const py::object parts = parts_in_wrapper(wrapper);
  return parts ? as_layer_tensor(wrapper, object(), parts) : py::object();
}

py::object PythonLayer::send_down_again(
    const py::object& overload, const py::tuple& args, const py::dict& kwargs) const {
  const ProcessedCall* call = ProcessedCall::innermost();
  if (call == nullptr || any_function_mode() || !call->is_same(this, overload, args, kwargs)) {
    return py::reinterpret_borrow<py::object>(Py_NotImplemented);
  }
  Args values = call->args();
  change_tensors(values, call->op().num_args, [&](const at::Tensor& tensor, size_t) {
    return follows(tensor) ? wrapper_of(tensor)->value() : tensor;
  });
  {
    const py::gil_scoped_release no_gil;
    call->op().call(values);
  }
  return torch::jit::createPyObjectForStack(std::move(values));
}

bool PythonLayer::has_composite_rule(const Operator& op) const {
  const py::gil_scoped_acquire gil;
  return !is_gone() && entry_for(op)->takes_whole;
}

bool PythonLayer::process_below(const Operator& op, Args& args) {
  const py::gil_scoped_acquire gil;
  if (!sees_all()) { // Layer.process calls the rule
    const auto entry = entry_for(op);
    if (entry->rule) {
      return call_rule(*entry, op, args);
    }
  }
  return call("process", op, args);
}

at::Tensor PythonLayer::rewritten_below(
    const at::Tensor& before, const at::Tensor& after, bool is_detached) const {
  const py::gil_scoped_acquire gil;
  return object().attr("_rewritten")(before, after, is_detached).cast<at::Tensor>();
}

// Calls a method with the operator and its arguments. Returns false if it does not process them.
bool PythonLayer::call(const char* method, const Operator& op, Args& args) {
  const py::gil_scoped_acquire gil;
  Args own = last(args, op.num_args).vec();
  change_tensors(
      own, op.num_args, [&](const at::Tensor& tensor, size_t) { return owned_or_plain(tensor); });
  const auto [positional, keywords] =
      python_arguments(op.schema(), own, /*with_nones=*/true, /*numbers_are_tensors=*/true);
  Objects objects, names;
  for (const py::handle argument : positional) {
    objects.push_back(argument.ptr());
  }
  for (const auto& [name, argument] : keywords) {
    names.push_back(name.ptr());
    objects.push_back(argument.ptr());
  }
  const py::object& overload = overload_of(op);
  const ProcessedCall processed(this, op, args, overload, objects, names, py::handle());
  return take_results(op, args, object().attr(method)(overload, positional, keywords));
}

// Calls the rule, on tensors of the layer alone.
bool PythonLayer::call_rule(const RuleEntry& entry, const Operator& op, Args& args) {
  const py::object layer = object();
  c10::SmallVector<py::object, 8> held;
  Objects objects = {layer.ptr(), entry.overload.ptr()};
  Objects names;
  bool any_owned = false;
  for (size_t i = 0; i < op.num_args; ++i) {
    const c10::IValue& value = peek(args, i, op.num_args);
    const c10::Argument& argument = op.schema().arguments()[i];
    if (argument.kwarg_only() && argument.default_value() && is_default(value, argument)) {
      continue;
    }
    held.push_back(argument_of_rule(value, argument, any_owned));
    objects.push_back(held.back().ptr());
    if (argument.kwarg_only()) {
      names.push_back(entry.keywords[i].ptr());
    }
  }
  if (!any_owned) { // constants that were wrapped
    return call("process", op, args);
  }
  const c10::ArrayRef<PyObject*> all(objects);
  const ProcessedCall processed(this, op, args, entry.overload, all.slice(2), names, entry.rule);
  py::object named;
  if (!names.empty()) {
    py::tuple keywords(names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      keywords[i] = py::reinterpret_borrow<py::object>(names[i]);
    }
    named = std::move(keywords);
  }
  const auto returned = py::reinterpret_steal<py::object>(PyObject_Vectorcall(
      entry.rule.ptr(), objects.data(), objects.size() - names.size(), named.ptr()));
  if (!returned) {
    py::error_already_set error;
    if (error.matches(PyExc_TypeError)) { // which `x + y` would take for a missing operator
      layer.attr("_refuse_type_error")(entry.overload, error.value());
    }
    throw error;
  }
  if (!is_layer_tensor(returned)) {
    layer.attr("_check_result")(entry.rule, entry.overload, returned);
  }
  return take_results(op, args, returned);
}

// A rule's argument, with tensors of the layer for all tensors.
py::object PythonLayer::argument_of_rule(
    const c10::IValue& value, const c10::Argument& argument, bool& any_owned) const {
  const auto of_layer = [&](const at::Tensor& tensor) -> py::object {
    if (!follows(tensor)) {
      return lifted(tensor);
    }
    py::object object = owned(tensor);
    any_owned = any_owned || object;
    return object ? object : lifted(wrapper_of(tensor)->value());
  };
  if (value.isTensor() && value.toTensor().defined()) {
    return of_layer(value.toTensor());
  }
  py::object converted = to_python(value, argument.real_type());
  if (is_container(value) && PyList_Check(converted.ptr())) {
    const py::list list = converted;
    for (size_t i = 0; i < list.size(); ++i) {
      if (is_tensor(list[i])) {
        list[i] = of_layer(tensor_of(list[i]));
      }
    }
  }
  return converted;
}

py::object PythonLayer::lifted(const at::Tensor& tensor) const {
  if (lifts_plainly_ && !any_function_mode()) {
    return as_layer_tensor(wrap_value(tensor), object(), py::none());
  }
  return object().attr("lift")(object_of(tensor));
}

} // namespace torchlayers
