// Binds layers written in Python.
#include <torch/csrc/Exceptions.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/stack.h"
#include "layers/functionalize/history.h"
#include "python/bindings.h"
#include "python/entry.h"
#include "python/jet_layer.h"
#include "python/layer_rules.h"
#include "python/python_layer.h"
#include "values/wrapper.h"

namespace torchlayers {

namespace py = pybind11;
using torch::wrap_pybind_function;

void bind_custom_layers(py::module_& m) {
  py::class_<RuleCache, std::shared_ptr<RuleCache>>(m, "RuleCache")
      .def(py::init<>())
      .def("forget", &RuleCache::forget);
  py::class_<PythonLayer, std::shared_ptr<PythonLayer>>(m, "PythonLayer")
      .def(py::init<const py::object&, std::string, bool, bool>())
      .def(
          "entry",
          [](const std::shared_ptr<PythonLayer>& layer) { return std::make_shared<Entry>(layer); })
      // Whether it is on a stack, or processing an operator.
      .def_property_readonly("is_active", [](const PythonLayer& layer) { return *layer.life(); })
      // A constant of the layer, which is not made one of its tensors.
      .def("wrap", wrap_pybind_function([](const PythonLayer& layer, const at::Tensor& value) {
             return layer.wrap_value(value);
           }))
      .def(
          "tensor",
          wrap_pybind_function([](const PythonLayer& layer, py::object value, py::object parts) {
            return layer.tensor(std::move(value), std::move(parts));
          }))
      .def(
          "send_down",
          wrap_pybind_function(
              [](const PythonLayer& layer,
                 const py::object& overload,
                 const py::tuple& args,
                 const py::dict& kwargs) { return layer.send_down_again(overload, args, kwargs); }))
      // The tensor, or its value if it is one of the layer without parts.
      .def(
          "owned_or_plain",
          wrap_pybind_function([](const PythonLayer& layer, const at::Tensor& tensor) {
            return layer.owned_or_plain(tensor);
          }));
  py::class_<JetLayer, PythonLayer, std::shared_ptr<JetLayer>>(m, "JetLayer")
      .def(py::init<const py::object&, std::string, size_t>());
  // The rule that is running; None if there is none.
  m.def("running_rule", []() -> py::object {
    const ProcessedCall* call = ProcessedCall::innermost();
    return call != nullptr && call->rule() ? py::reinterpret_borrow<py::object>(call->rule())
                                           : py::none();
  });
  // The torchlayers.Layer on top of the stack; None if the layer there is another one.
  m.def("python_layer_on_top", wrap_pybind_function([]() -> py::object {
          const auto* layer = dynamic_cast<const PythonLayer*>(top_layer());
          return layer != nullptr ? layer->object() : py::none();
        }));
  // The tensor, of class LayerTensor if it has parts in a torchlayers.Layer of this stack. Rules in
  // C++ leave that until somebody reads them.
  m.def("as_layer_tensor", wrap_pybind_function([](const at::Tensor& tensor) {
          const auto* wrapper = wrapper_of(tensor);
          const auto level = wrapper != nullptr ? wrapper->level() : std::nullopt;
          if (level && is_of_this_stack(*wrapper, *level)) {
            if (const auto* layer = dynamic_cast<const PythonLayer*>(layer_at(*level))) {
              layer->owned(tensor);
            }
          }
          return tensor;
        }));
  // The value in a wrapper of any level, alive or dead.
  m.def("value_in_wrapper", wrap_pybind_function([](const at::Tensor& tensor) {
          const auto* wrapper = wrapper_of(tensor);
          TORCH_CHECK(wrapper != nullptr, "torchlayers: this tensor is not of a layer");
          return wrapper->value();
        }));
  m.def(
      "with_history_of",
      wrap_pybind_function([](const at::Tensor& other, const at::Tensor& values, bool is_detached) {
        return with_history_of(other, values, is_detached);
      }));
}

} // namespace torchlayers
