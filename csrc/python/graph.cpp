// Differentiated TorchScript graphs.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "graph/errors.h"
#include "graph/gradient.h"
#include "graph/prepare/prepare.h"
#include "graph/prepare/rewrites.h"
#include "graph/rules/rules.h"
#include "graph/run/run.h"
#include "graph/tracked.h"
#include "python/bindings.h"

namespace torchlayers::graph {

namespace py = pybind11;
using torch::jit::Graph;
using torch::jit::Value;

namespace {

// An undefined tensor is None in Python.
py::object to_python(const c10::IValue& value) {
  if (value.isTensor() && !value.toTensor().defined()) {
    return py::none();
  }
  return torch::jit::toPyObject(value);
}

// Runs a graph on Python values and returns its results, packed or not. Arguments are converted to
// the types of its inputs.
class PythonProgram {
 public:
  explicit PythonProgram(const std::shared_ptr<Graph>& graph) : graph_(graph) {
    for (const auto* input : graph->inputs()) {
      types_.push_back(c10::unshapedType(input->type()));
    }
    packed_ = graph->outputs().size() == 1 &&
              graph->outputs()[0]->node()->kind() == c10::prim::TupleConstruct;
  }

  py::list run(const py::sequence& arguments) {
    TORCH_CHECK(
        arguments.size() == types_.size(),
        "torchlayers: the graph takes ",
        types_.size(),
        " inputs, got ",
        arguments.size());
    std::vector<c10::IValue> stack;
    stack.reserve(types_.size());
    for (size_t i = 0; i < types_.size(); ++i) {
      stack.push_back(torch::jit::toIValue(arguments[i], types_[i]));
    }
    if (!program_) { // created late: some graphs are only differentiated and printed
      program_ = std::make_shared<Program>(*graph_);
    }
    {
      const py::gil_scoped_release no_gil;
      stack = program_->run(std::move(stack));
    }
    py::list results;
    if (packed_) {
      stack = stack.at(0).toTupleRef().elements().vec();
    }
    for (const auto& value : stack) {
      results.append(to_python(value));
    }
    return results;
  }

 private:
  std::shared_ptr<Graph> graph_;
  std::shared_ptr<Program> program_;
  std::vector<c10::TypePtr> types_;
  bool packed_ = false; // the results in one tuple (lift.h)
};

std::optional<std::vector<c10::IValue>> example_values(
    const Graph& graph, size_t first, const py::object& examples) {
  if (examples.is_none()) {
    return std::nullopt;
  }
  std::vector<c10::IValue> values;
  for (const auto& example : examples) {
    values.push_back(
        torch::jit::toIValue(example, graph.inputs().at(first + values.size())->type()));
  }
  return values;
}

Prepared prepare_from_python(
    const std::shared_ptr<Graph>& graph,
    const py::object& module,
    bool keep_types,
    const py::object& examples) {
  c10::IValue self;
  if (!module.is_none()) {
    self = module.cast<torch::jit::Module>()._ivalue();
  }
  return prepare(*graph, self, keep_types, example_values(*graph, self.isNone() ? 0 : 1, examples));
}

void raise_graph_errors() {
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) {
        std::rethrow_exception(pointer);
      }
    } catch (const GraphProblem& problem) {
      const auto type = py::module_::import("torchlayers.graph.errors").attr("GraphError");
      PyErr_SetString(type.ptr(), problem.what());
    }
  });
}

} // namespace

void bind(py::module_& m) {
  raise_graph_errors();
  py::class_<ScriptGradient>(
      m, "ScriptGradient", "The forward and reverse graphs of a differentiated graph.")
      .def_readonly("f", &ScriptGradient::f)
      .def_readonly("df", &ScriptGradient::df)
      .def_readonly("f_real_outputs", &ScriptGradient::f_real_outputs)
      .def_readonly("df_input_vjps", &ScriptGradient::df_input_vjps)
      .def_readonly("df_output_vjps", &ScriptGradient::df_output_vjps)
      .def_readonly("df_input_captured_inputs", &ScriptGradient::df_input_captured_inputs)
      .def_readonly("df_input_captured_outputs", &ScriptGradient::df_input_captured_outputs)
      .def_readonly("steps", &ScriptGradient::steps);
  py::class_<Structure>(
      m, "Structure", "Describes how a structure is built from a flat list of values.")
      .def_readonly("kind", &Structure::kind)
      .def_readonly("fields", &Structure::fields)
      .def_readonly("parts", &Structure::parts);
  py::class_<Prepared>(m, "PreparedGraph", "A graph that is ready to be differentiated.")
      .def_readonly("graph", &Prepared::graph)
      .def_property_readonly(
          "bound",
          [](const Prepared& prepared) {
            py::list values;
            for (auto value : prepared.bound) {
              values.append(torch::jit::toPyObject(std::move(value)));
            }
            return values;
          })
      .def_readonly("written", &Prepared::written)
      .def_readonly("inputs", &Prepared::inputs)
      .def_readonly("output", &Prepared::output);
  py::class_<PythonProgram>(
      m, "GraphProgram", "Runs a TorchScript graph unchanged, without torch's executor.")
      .def(py::init<const std::shared_ptr<Graph>&>())
      .def("run", torch::wrap_pybind_function(&PythonProgram::run));
  m.def("prepare_graph", &prepare_from_python);
  m.def("operators_with_rules", [] {
    auto names = rule_names();
    const auto composed = composition_names();
    names.insert(names.end(), composed.begin(), composed.end());
    return names;
  });
  m.def("may_require_grad", [](const Value& value) { return may_require_grad(value.type()); });
  m.def("set_inputs_requiring_grad", &set_inputs_requiring_grad);
  m.def("differentiate_graph", [](const std::shared_ptr<Graph>& graph, bool keep_steps) {
    return differentiate(*graph, keep_steps);
  });
}

} // namespace torchlayers::graph
