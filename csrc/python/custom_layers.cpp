// torchlayers.Layer: layers written in Python.
#include <torch/csrc/Exceptions.h>

#include <unordered_map>

#include "core/args.h"
#include "core/errors.h"
#include "core/stack.h"
#include "layers/custom.h"
#include "layers/functionalize/history.h"
#include "python/bindings.h"
#include "python/entry.h"
#include "python/operators/arguments.h"
#include "python/tree.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

namespace py = pybind11;
using torch::wrap_pybind_function;

// torch.ops.aten.add.Tensor. Held for ever, as operators are.
const py::object& overload_of(const Operator& op) {
  static auto* overloads = new std::unordered_map<const Operator*, py::object>();
  py::object& overload = (*overloads)[&op];
  if (!overload) {
    overload = imported("torchlayers.core.operator_schema", "overload")(
        op.schema().name(), op.schema().overload_name());
  }
  return overload;
}

// Works by the methods of a torchlayers.Layer. Each of the two objects refers to the other, and the
// Python one may hold tensors that keep this one alive; so this one's reference is weak when the
// layer is not on a stack. A tensor of the layer and a saved stack (core/saved_stack.h), from which
// code may be run again on that stack, refer to the Python object too.
class PythonLayer final : public CustomLayer {
 public:
  PythonLayer(const py::object& layer, std::string name, bool sees_all)
      : CustomLayer(std::move(name), sees_all), weak_(py::weakref(layer)) {}
  ~PythonLayer() override {
    const py::gil_scoped_acquire gil;
    weak_ = py::object();
    layer_ = py::object();
  }
  PythonLayer(const PythonLayer&) = delete;
  PythonLayer& operator=(const PythonLayer&) = delete;

  bool has_rule_for(const Operator& op) const override {
    const py::gil_scoped_acquire gil;
    return object().attr("has_rule")(overload_of(op)).cast<bool>();
  }
  void switch_on() override {
    resume();
  }
  void switch_off() override {
    suspend();
  }
  void resume() override {
    const py::gil_scoped_acquire gil;
    const py::object layer = weak_();
    layer_ = layer.is_none() ? py::object() : layer;
  }
  void suspend() override {
    const py::gil_scoped_acquire gil;
    layer_ = py::object();
  }
  std::shared_ptr<void> object_in_python() const override {
    const py::gil_scoped_acquire gil;
    const auto drop = [](void* object) {
      const py::gil_scoped_acquire gil;
      Py_DECREF(static_cast<PyObject*>(object));
    };
    return layer_ ? std::shared_ptr<void>(py::object(layer_).release().ptr(), drop) : nullptr;
  }
  std::map<std::string, c10::IValue> metadata() const override {
    const py::gil_scoped_acquire gil;
    auto line = layer_ ? layer_.attr("_entered_at")().cast<std::string>() : std::string();
    return line.empty() ? std::map<std::string, c10::IValue>()
                        : std::map<std::string, c10::IValue>{{"entered_at", std::move(line)}};
  }
  // Called with the GIL.
  const py::object& object() const {
    if (!layer_) {
      raise_as(ErrorClass::EscapedTensor, "{} has ended, and can't process operators.", name());
    }
    return layer_;
  }

 protected:
  bool is_gone() const override {
    return !layer_;
  }
  bool has_composite_rule(const Operator& op) const override {
    const py::gil_scoped_acquire gil;
    return !is_gone() && object().attr("_has_composite_rule")(overload_of(op)).cast<bool>();
  }
  bool process_below(const Operator& op, Args& args) override {
    return call("process", op, args);
  }
  void process_undecomposed(const Operator& op, Args& args) override {
    call("_process_undecomposed", op, args);
  }
  at::Tensor rewritten_below(
      const at::Tensor& before, const at::Tensor& after, bool is_detached) const override {
    const py::gil_scoped_acquire gil;
    return object().attr("_rewritten")(before, after, is_detached).cast<at::Tensor>();
  }

 private:
  // Calls a method with the operator and its arguments. Returns false if it does not process them.
  bool call(const char* method, const Operator& op, Args& args) {
    const py::gil_scoped_acquire gil;
    Args own = last(args, op.num_args).vec();
    change_tensors(own, op.num_args, [&](const at::Tensor& tensor, size_t) {
      return follows(tensor) ? with_parts(tensor) : tensor;
    });
    const auto [positional, keywords] =
        python_arguments(op.schema(), own, /*with_nones=*/true, /*numbers_are_tensors=*/true);
    const py::object returned = object().attr(method)(overload_of(op), positional, keywords);
    if (returned.ptr() == Py_NotImplemented) {
      return false;
    }
    Args results;
    if (op.num_returns > 0) {
      results = results_from_python(op, returned, "the rule of");
    }
    drop(args, op.num_args);
    args.insert(args.end(), results.begin(), results.end());
    return true;
  }

  // The value of a tensor whose Python object has no parts: x.data, or a constant that was wrapped
  // to be functional.
  at::Tensor with_parts(const at::Tensor& tensor) const {
    return py::hasattr(py::cast(tensor), "parts") ? tensor : wrapper_of(tensor)->value();
  }

  py::object weak_;
  py::object layer_;
};

} // namespace

void bind_custom_layers(py::module_& m) {
  py::class_<PythonLayer, std::shared_ptr<PythonLayer>>(m, "PythonLayer")
      .def(py::init<const py::object&, std::string, bool>())
      .def(
          "entry",
          [](const std::shared_ptr<PythonLayer>& layer) { return std::make_shared<Entry>(layer); })
      // Whether it is on a stack, or processing an operator.
      .def_property_readonly("is_active", [](const PythonLayer& layer) { return *layer.life(); })
      // A tensor of the layer around the value.
      .def("wrap", wrap_pybind_function([](const PythonLayer& layer, const at::Tensor& value) {
             return layer.wrap_value(value);
           }))
      .def("owns", [](const PythonLayer& layer, const at::Tensor& tensor) {
        return layer.follows(tensor);
      });
  // The torchlayers.Layer on top of the stack; None if the layer there is another one.
  m.def("python_layer_on_top", wrap_pybind_function([]() -> py::object {
          const auto* layer = dynamic_cast<const PythonLayer*>(top_layer());
          return layer != nullptr ? layer->object() : py::none();
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
