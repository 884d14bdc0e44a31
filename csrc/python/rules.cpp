#include "python/rules.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include <string>
#include <vector>

#include "core/errors.h"
#include "python/arguments.h"
#include "rules/rule.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

class PythonJvpRule final : public JvpRule {
 public:
  explicit PythonJvpRule(py::object function) : function_(std::move(function)) {}

  void jvp(JvpCall& call) const override {
    py::gil_scoped_acquire gil;
    const auto& schema = call.op().schema();
    Args primals;
    py::list tangents;
    for (size_t i = 0; i < call.op().num_args; ++i) {
      primals.push_back(call.arg(i));
      if (!schema.arguments()[i].kwarg_only()) {
        tangents.append(tangent_of(call, i));
      }
    }
    const auto [positional, keywords] = python_arguments(schema, primals, /*with_nones=*/true);
    const py::object returned = function_(positional, py::tuple(tangents), **keywords);
    if (!py::isinstance<py::tuple>(returned) || py::len(returned) != 2) {
      raise("the jvp rule of {} must return (results, tangents).", call.op().name());
    }
    const auto pair = py::reinterpret_borrow<py::tuple>(returned);
    call.have_run(results_from_python(call.op(), pair[0], "the jvp rule of"));
    take_tangents(call, pair[1]);
  }
  bool is_from_python() const override {
    return true;
  }

 private:
  static py::object tangent_of(const JvpCall& call, size_t i) {
    if (call.arg(i).isTensor()) {
      return call.has_tangent(i) ? py::cast(call.tangent(i)) : py::none();
    }
    if (!call.has_tangents(i)) {
      return py::none();
    }
    py::list members;
    for (const at::Tensor& tangent : call.tangents(i)) {
      members.append(tangent.defined() ? py::cast(tangent) : py::none());
    }
    return members;
  }

  static void take_tangents(JvpCall& call, const py::object& returned) {
    const size_t count = call.op().num_returns;
    if (count == 1) {
      take(call, 0, returned);
      return;
    }
    if (!py::isinstance<py::sequence>(returned) || py::len(returned) != count) {
      raise(
          "the jvp rule of {} must return a tangent, or None, for each of its {} results.",
          call.op().name(),
          count);
    }
    const auto tangents = py::reinterpret_borrow<py::sequence>(returned);
    for (size_t i = 0; i < count; ++i) {
      take(call, i, tangents[i]);
    }
  }

  static at::Tensor tensor(const JvpCall& call, size_t i, const py::handle& object) {
    if (object.is_none()) {
      return {};
    }
    if (!THPVariable_Check(object.ptr())) {
      raise("the jvp rule of {} gave result {} no tensor for a tangent.", call.op().name(), i);
    }
    return THPVariable_Unpack(object.ptr());
  }

  static void check_size(
      const JvpCall& call, size_t i, const at::Tensor& tangent, const at::Tensor& result) {
    if (tangent.defined() && tangent.sym_sizes() != result.sym_sizes()) {
      raise(
          "the jvp rule of {} gave result {} of shape {} a tangent of shape {}: they must be the "
          "same.",
          call.op().name(),
          i,
          result.sym_sizes(),
          tangent.sym_sizes());
    }
  }

  static void take(JvpCall& call, size_t i, const py::object& object) {
    if (!call.has_list_result(i)) {
      const at::Tensor tangent = tensor(call, i, object);
      if (tangent.defined()) {
        check_size(call, i, tangent, call.result(i));
      }
      call.set_tangent(i, tangent);
      return;
    }
    if (object.is_none()) {
      return;
    }
    const std::vector<at::Tensor> results = call.result_list(i);
    const py::list members(object);
    if (members.size() != results.size()) {
      raise(
          "the jvp rule of {} gave result {}, a list of {} tensors, {} tangents: they must be as "
          "many.",
          call.op().name(),
          i,
          results.size(),
          members.size());
    }
    std::vector<at::Tensor> tangents;
    for (size_t j = 0; j < results.size(); ++j) {
      tangents.push_back(tensor(call, i, members[j]));
      check_size(call, i, tangents.back(), results[j]);
    }
    call.set_tangents(i, tangents);
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
    const auto& schema = call.op().schema();
    Args primals;
    Args results;
    for (size_t i = 0; i < call.op().num_args; ++i) {
      primals.push_back(call.arg(i));
    }
    for (size_t i = 0; i < call.op().num_returns; ++i) {
      results.push_back(call.result_value(i));
    }
    const auto [positional, keywords] = python_arguments(schema, primals, /*with_nones=*/true);
    size_t next = 0;
    const py::object cotangents = as_results(results, [&](const c10::IValue& result) {
      if (!result.isTensor() || !result.toTensor().defined()) {
        return py::object(py::none());
      }
      const at::Tensor& cotangent = call.cotangents()[next++];
      return cotangent.defined() ? py::cast(cotangent) : py::object(py::none());
    });
    const py::object values =
        as_results(results, [](const c10::IValue& value) { return torch::jit::toPyObject(value); });
    take_gradients(call, function_(cotangents, positional, values, **keywords));
  }

 private:
  // Shaped as the operator's results are: one, a list, or a tuple of such.
  template <class Of>
  static py::object as_results(const Args& results, const Of& of) {
    py::list parts;
    for (const c10::IValue& result : results) {
      if (!result.isTensorList()) {
        parts.append(of(result));
        continue;
      }
      py::list members;
      for (const c10::IValue& member : result.toListRef()) {
        members.append(of(member));
      }
      parts.append(members);
    }
    return results.size() == 1 ? py::object(parts[0]) : py::tuple(parts);
  }

  static void take_gradients(VjpCall& call, const py::object& returned) {
    size_t count = 0;
    for (const auto& argument : call.op().schema().arguments()) {
      count += argument.kwarg_only() ? 0 : 1;
    }
    py::tuple gradients;
    if (count == 1 && !py::isinstance<py::tuple>(returned)) {
      gradients = py::make_tuple(returned);
    } else if (py::isinstance<py::tuple>(returned)) {
      gradients = returned;
    }
    if (gradients.size() != count) {
      raise(
          "the vjp rule of {} must return a tuple with a gradient, or None, for each of its {} "
          "positional arguments.",
          call.op().name(),
          count);
    }
    for (const Target& target : call.targets()) {
      give(call, target, gradient_of(call, target, gradients[target.arg]));
    }
  }

  // The member's own, of the list that a list of tensors is given.
  static py::object gradient_of(
      const VjpCall& call, const Target& target, const py::object& given) {
    if (given.is_none() || !call.arg(target.arg).isList()) {
      return given;
    }
    const py::list members(given);
    const size_t count = call.arg(target.arg).toListRef().size();
    if (members.size() != count) {
      raise(
          "the vjp rule of {} gave argument {}, a list of {} tensors, {} gradients: they must be "
          "as many.",
          call.op().name(),
          target.arg,
          count,
          members.size());
    }
    return members[target.member];
  }

  static void give(VjpCall& call, const Target& target, const py::object& object) {
    if (object.is_none()) {
      return;
    }
    if (!THPVariable_Check(object.ptr())) {
      raise(
          "the vjp rule of {} gave argument {} no tensor for a gradient, but {}.",
          call.op().name(),
          target.arg,
          py::str(py::type::of(object).attr("__name__")).cast<std::string>());
    }
    const at::Tensor gradient = THPVariable_Unpack(object.ptr());
    const c10::SymIntArrayRef sizes(target.sizes);
    if (gradient.sym_sizes() != sizes) {
      raise(
          "the vjp rule of {} gave argument {} of shape {} a gradient of shape {}: they must be "
          "the same.",
          call.op().name(),
          target.arg,
          sizes,
          gradient.sym_sizes());
    }
    call.give(target.arg, gradient, target.member);
  }

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
