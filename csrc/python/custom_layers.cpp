// torchlayers.Layer: layers written in Python.
#include <torch/csrc/Exceptions.h>

#include <unordered_map>

#include "core/errors.h"
#include "core/stack.h"
#include "layers/custom.h"
#include "python/arguments.h"
#include "python/bindings.h"
#include "python/entry.h"
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

class PythonLayer final : public CustomLayer {
 public:
  PythonLayer(std::string name, bool sees_all, py::object layer)
      : CustomLayer(std::move(name), sees_all), layer_(std::move(layer)) {}
  ~PythonLayer() override {
    release();
  }
  PythonLayer(const PythonLayer&) = delete;
  PythonLayer& operator=(const PythonLayer&) = delete;

  bool has_rule_for(const Operator& op) const override {
    const py::gil_scoped_acquire gil;
    return object().attr("has_rule")(overload_of(op)).cast<bool>();
  }
  // The object may hold tensors of this layer, which keep this object alive.
  void switch_off() override {
    release();
  }
  const py::object& object() const {
    if (!layer_) {
      raise("{} has ended, and can't process operators.", name());
    }
    return layer_;
  }

 protected:
  bool process_below(const Operator& op, Args& args) override {
    return call("process", op, args);
  }
  void process_undecomposed(const Operator& op, Args& args) override {
    call("_process_undecomposed", op, args);
  }

 private:
  // Calls a method with the operator and its arguments. Returns false if it does not process them.
  bool call(const char* method, const Operator& op, Args& args) {
    const py::gil_scoped_acquire gil;
    const Args own = last(args, op.num_args).vec();
    const auto [positional, keywords] =
        python_arguments(op.schema(), own, /*with_nones=*/false, /*numbers_are_tensors=*/true);
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

  // A layer may end on any thread, with or without the GIL.
  void release() {
    const py::gil_scoped_acquire gil;
    layer_ = py::object();
  }

  py::object layer_;
};

const CustomLayer& custom_layer(const Entry& entry) {
  const auto* layer = dynamic_cast<const CustomLayer*>(entry.layer());
  TORCH_CHECK(layer != nullptr, "torchlayers: this layer is not active");
  return *layer;
}

} // namespace

void bind_custom_layers(py::module_& m) {
  m.def("python_layer_entry", [](py::object layer, std::string name, bool sees_all) {
    return std::make_shared<Entry>(
        std::make_shared<PythonLayer>(std::move(name), sees_all, std::move(layer)));
  });
  m.def("is_entered", [](const Entry& entry) {
    return entry.layer() != nullptr && entry.layer()->level() > 0;
  });
  // The torchlayers.Layer on top of the stack; None if the layer there is another one.
  m.def("python_layer_on_top", wrap_pybind_function([]() -> py::object {
          const auto* layer = dynamic_cast<const PythonLayer*>(top_layer());
          return layer != nullptr ? layer->object() : py::none();
        }));
  // A tensor of the entry's layer around the value.
  m.def("wrap_at_layer", wrap_pybind_function([](const Entry& entry, const at::Tensor& value) {
          return custom_layer(entry).wrap_value(value);
        }));
  m.def("is_of_layer", wrap_pybind_function([](const Entry& entry, const at::Tensor& tensor) {
          return custom_layer(entry).follows(tensor);
        }));
  // The value in a wrapper of any level, alive or dead.
  m.def("value_in_wrapper", wrap_pybind_function([](const at::Tensor& tensor) {
          const auto* wrapper = wrapper_of(tensor);
          TORCH_CHECK(wrapper != nullptr, "torchlayers: this tensor is not of a layer");
          return wrapper->value();
        }));
}

} // namespace torchlayers
