// Inspects hooks that Python has registered on nodes, and the source lines that anomaly mode
// records.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_anomaly_mode.h>
#include <torch/csrc/autograd/python_hook.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>

#include "core/callbacks.h"
#include "python/bindings.h"
#include "python/hooks/tensor_hooks.h"
#include "python/modules/module_swap_dicts.h"
#include "python/tree.h"

namespace torchlayers {
namespace {

namespace py = pybind11;
using modules::interned;
using torch::autograd::Node;

// Functions that may only be called by code that runs in the autograd engine.
bool is_question(PyObject* name) {
  static const std::array<PyObject*, 3> questions = {
      interned("queue_callback"),
      interned("_current_graph_task_id"),
      interned("_will_engine_execute_node")};
  return std::ranges::find(questions, name) != questions.end(); // a code's names are interned
}

// Modules of torch's own hooks that call users' hooks, and none of these functions.
constexpr std::array<std::string_view, 2> kAskNothing = {
    "torch.utils.hooks", "torch.nn.modules.module"};

bool asks_engine(py::handle hook) {
  if (PyMethod_Check(hook.ptr())) {
    hook = PyMethod_GET_FUNCTION(hook.ptr());
  }
  if (!PyFunction_Check(hook.ptr())) {
    return py::isinstance<PlacedHook>(hook) && asks_engine(hook.cast<const PlacedHook&>().hook);
  }
  const auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(hook.ptr()));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_names); ++i) {
    if (is_question(PyTuple_GET_ITEM(code->co_names, i))) {
      return true;
    }
  }
  static PyObject* const dunder_name = interned("__name__");
  PyObject* module = PyDict_GetItemWithError(PyFunction_GET_GLOBALS(hook.ptr()), dunder_name);
  if (module == nullptr || !PyUnicode_Check(module)) {
    return false;
  }
  const auto name = py::handle(module).cast<std::string_view>();
  return name.starts_with("torch.") && std::ranges::find(kAskNothing, name) == kAskNothing.end();
}

// torch does not export the types, but their names identify them.
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

bool any_needs_engine(at::ArrayRef<Node*> nodes) {
  const py::gil_scoped_acquire gil;
  return std::ranges::any_of(nodes, [](Node* node) { return needs_engine(*node); });
}

std::string line_of_node(Node& node) {
  const py::gil_scoped_acquire gil;
  try {
    auto& metadata = static_cast<torch::autograd::PyAnomalyMetadata&>(*node.metadata());
    return imported("torchlayers.core.errors", "line_of_node")(py::handle(metadata.dict()))
        .cast<std::string>();
  } catch (const py::error_already_set&) {
    return "";
  }
}

} // namespace

void supply_node_callbacks() {
  callbacks.any_needs_engine = &any_needs_engine;
  callbacks.line_of_node = &line_of_node;
}

} // namespace torchlayers
