// torchlayers.Layer: layers written in Python.
#include <torch/csrc/Exceptions.h>

#include <unordered_map>

#include "core/errors.h"
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

// Shared, because a std::function is copied, and freed with the GIL, because a layer may end on any
// thread.
std::shared_ptr<py::object> shared(py::object object) {
  return {new py::object(std::move(object)), [](py::object* object) {
            const py::gil_scoped_acquire gil;
            delete object;
          }};
}

CustomLayer::Work work_in_python(py::object process, py::object refuse, py::object has_rule) {
  CustomLayer::Work work;
  work.process = [process = shared(std::move(process))](const Operator& op, Args& args) {
    const py::gil_scoped_acquire gil;
    const Args own = last(args, op.num_args).vec();
    const auto [positional, keywords] = python_arguments(op.schema(), own, /*with_nones=*/false);
    const py::object returned = (*process)(overload_of(op), positional, keywords);
    if (returned.ptr() == Py_NotImplemented) {
      return false;
    }
    Args results = op.num_returns == 0 ? Args() : results_from_python(op, returned, "the rule of");
    drop(args, op.num_args);
    args.insert(args.end(), results.begin(), results.end());
    return true;
  };
  work.refuse = [refuse = shared(std::move(refuse))](const Operator& op) {
    const py::gil_scoped_acquire gil;
    (*refuse)(overload_of(op));
  };
  work.has_rule = [has_rule = shared(std::move(has_rule))](const Operator& op) {
    const py::gil_scoped_acquire gil;
    return (*has_rule)(overload_of(op)).cast<bool>();
  };
  return work;
}

const CustomLayer& custom_layer(const Entry& entry) {
  const auto* layer = dynamic_cast<const CustomLayer*>(entry.layer());
  TORCH_CHECK(layer != nullptr, "torchlayers: this layer is not active");
  return *layer;
}

} // namespace

void bind_custom_layers(py::module_& m) {
  m.def(
      "custom_layer_entry",
      [](std::string name, bool sees_all, py::object process, py::object refuse, py::object rule) {
        return std::make_shared<Entry>(std::make_shared<CustomLayer>(
            std::move(name),
            sees_all,
            work_in_python(std::move(process), std::move(refuse), std::move(rule))));
      });
  m.def("is_entered", [](const Entry& entry) {
    return entry.layer() != nullptr && entry.layer()->level() > 0;
  });
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
