// Hooks on nodes as Python has registered them, and the lines that anomaly mode remembers.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_anomaly_mode.h>
#include <torch/csrc/autograd/python_hook.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>

#include "core/hooks.h"
#include "python/bindings.h"
#include "python/tensor_hooks.h"
#include "python/tree.h"

namespace torchlayers {
namespace {

namespace py = pybind11;
using torch::autograd::Node;

// What only code that runs in the engine may ask it.
constexpr std::array<std::string_view, 3> kQuestions = {
    "queue_callback", "_current_graph_task_id", "_will_engine_execute_node"};
// Of torch's own hooks, those that call users' and ask nothing.
constexpr std::array<std::string_view, 2> kAskNothing = {
    "torch.utils.hooks", "torch.nn.modules.module"};

bool asks_engine(py::handle hook) {
  if (py::isinstance<PlacedHook>(hook)) {
    return asks_engine(hook.cast<const PlacedHook&>().hook);
  }
  if (PyMethod_Check(hook.ptr())) {
    hook = PyMethod_GET_FUNCTION(hook.ptr());
  }
  if (!PyFunction_Check(hook.ptr())) {
    return false;
  }
  const auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(hook.ptr()));
  for (const py::handle name : py::reinterpret_borrow<py::tuple>(code->co_names)) {
    if (std::ranges::find(kQuestions, name.cast<std::string_view>()) != kQuestions.end()) {
      return true;
    }
  }
  PyObject* module = PyDict_GetItemString(PyFunction_GET_GLOBALS(hook.ptr()), "__name__");
  if (module == nullptr || !PyUnicode_Check(module)) {
    return false;
  }
  const auto name = py::handle(module).cast<std::string_view>();
  return name.starts_with("torch.") && std::ranges::find(kAskNothing, name) == kAskNothing.end();
}

// torch exports none of the types, but their names tell.
template <class OfPython, class Hook>
bool any_asks_engine(const std::unique_ptr<Hook>& hook, const char* name) {
  if (hook == nullptr || std::strstr(typeid(*hook).name(), name) == nullptr) {
    return false;
  }
  PyObject* dict = static_cast<const OfPython&>(*hook).dict;
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value) != 0;) {
    if (asks_engine(value)) {
      return true;
    }
  }
  return false;
}

bool needs_engine(Node& node) {
  using namespace torch::autograd;
  const py::gil_scoped_acquire gil;
  for (const auto& hook : node.tensor_pre_hooks()) {
    if (any_asks_engine<PyFunctionTensorPreHook>(hook, "PyFunctionTensorPreHook")) {
      return true;
    }
  }
  for (const auto& hook : node.pre_hooks()) {
    if (any_asks_engine<PyFunctionPreHook>(hook, "PyFunctionPreHook")) {
      return true;
    }
  }
  for (const auto& hook : node.post_hooks()) {
    if (any_asks_engine<PyFunctionPostHook>(hook, "PyFunctionPostHook")) {
      return true;
    }
  }
  return false;
}

std::string line_of_node(Node& node) {
  const py::gil_scoped_acquire gil;
  try {
    auto& metadata = static_cast<torch::autograd::PyAnomalyMetadata&>(*node.metadata());
    return imported("torchlayers.errors", "line_of_node")(py::handle(metadata.dict()))
        .cast<std::string>();
  } catch (const py::error_already_set&) {
    return "";
  }
}

} // namespace

void supply_hooks_on_nodes() {
  hooks.needs_engine = &needs_engine;
  hooks.line_of_node = &line_of_node;
}

} // namespace torchlayers
