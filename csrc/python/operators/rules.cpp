#include "python/operators/rules.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include "python/operators/arguments.h"
#include "python/tree.h"
#include "rules/rule.h"
#include "rules/vjp_call.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

class PythonJvpRule final : public JvpRule {
 public:
  explicit PythonJvpRule(py::object function) : function_(std::move(function)) {}

  void jvp(JvpCall& call) const override {
    py::gil_scoped_acquire gil;
    const Operator& op = call.op();
    Args primals;
    py::list tangents;
    for (size_t i = 0; i < op.num_args; ++i) {
      primals.push_back(call.arg(i));
      if (!op.schema().arguments()[i].kwarg_only()) {
        tangents.append(tangents_of(call, i));
      }
    }
    const auto [positional, keywords] = python_arguments(op.schema(), primals, /*with_nones=*/true);
    const py::tuple returned = function_(positional, py::tuple(tangents), keywords);
    call.have_run(results_from_python(op, returned[0], "the jvp rule of"));
    for (size_t i = 0; i < op.num_returns; ++i) {
      Tensors of_result;
      for (const py::handle tangent : returned[1][py::int_(i)]) {
        of_result.push_back(tensor_if_any(tangent));
      }
      call.set_tangents(i, of_result);
    }
  }
  bool is_from_python() const override {
    return true;
  }

 private:
  static py::object tangents_of(const JvpCall& call, size_t i) {
    if (!call.has_tangents(i)) {
      return py::none();
    }
    if (call.arg(i).isTensor()) {
      return object_of(call.tangent(i));
    }
    py::list members;
    for (const at::Tensor& tangent : call.tangents(i)) {
      members.append(object_if_any(tangent));
    }
    return members;
  }

  py::object function_;
};

class PythonVjpRule final : public VjpRule {
 public:
  PythonVjpRule(const Operator& op, py::object function) : function_(std::move(function)) {
    const auto& args = op.schema().arguments();
    for (size_t i = 0; i < op.num_args; ++i) {
      if (!args[i].kwarg_only()) {
        know(i, Reads::everything());
      }
    }
    for (size_t i = 0; i < op.num_returns; ++i) {
      results_.set(i);
    }
  }

  void vjp(VjpCall& call) const override {
    py::gil_scoped_acquire gil;
    const Operator& op = call.op();
    Args primals;
    py::list cotangents, results, targets;
    for (size_t i = 0; i < op.num_args; ++i) {
      primals.push_back(call.arg(i));
    }
    for (size_t i = 0; i < op.num_returns; ++i) {
      results.append(torch::jit::toPyObject(call.result_value(i)));
    }
    for (const at::Tensor& cotangent : call.cotangents()) {
      cotangents.append(object_if_any(cotangent));
    }
    for (const Target& target : call.targets()) {
      const c10::SymIntArrayRef sizes(target.sizes);
      targets.append(py::make_tuple(target.arg, target.member, py::cast(sizes)));
    }
    const auto [positional, keywords] = python_arguments(op.schema(), primals, /*with_nones=*/true);
    const py::list gradients = function_(cotangents, positional, results, keywords, targets);
    for (size_t i = 0; i < call.targets().size(); ++i) {
      const Target& target = call.targets()[i];
      if (const py::object gradient = gradients[i]; !gradient.is_none()) {
        call.give(target.arg, tensor_of(gradient), target.member);
      }
    }
  }

 private:
  py::object function_;
};

} // namespace

const JvpRule* new_jvp_rule(py::object function) {
  return new PythonJvpRule(std::move(function));
}

const VjpRule* new_vjp_rule(const Operator& op, py::object function) {
  return new PythonVjpRule(op, std::move(function));
}

} // namespace torchlayers
