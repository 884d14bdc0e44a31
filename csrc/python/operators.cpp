#include "python/operators.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/errors.h"
#include "dispatch/typed/typed.h"
#include "layers/decompose.h"
#include "rules/batching/families.h"
#include "rules/table.h"

namespace torchlayers {
namespace {

namespace py = pybind11;
using torch::wrap_pybind_function;

// dtypes and memory formats are numbers to the dispatcher.
py::object to_python(const c10::IValue& value, const c10::TypePtr& declared) {
  const auto optional = declared->cast<c10::OptionalType>();
  const auto kind = (optional ? optional->getElementType() : declared)->kind();
  if (value.isInt() && kind == c10::TypeKind::ScalarTypeType) {
    return py::cast(value.toScalarType());
  }
  if (value.isInt() && kind == c10::TypeKind::MemoryFormatType) {
    return py::cast(value.toMemoryFormat());
  }
  return torch::jit::toPyObject(value);
}

c10::IValue from_python(const py::handle& object, const c10::TypePtr& type) {
  return torch::jit::toIValue(object, type);
}

// The positional arguments, as Python passes them, and those by keyword.
std::pair<py::tuple, py::dict> arguments_of(
    const c10::FunctionSchema& schema, const Args& args, bool with_nones) {
  py::list positional;
  py::dict keywords;
  for (size_t i = 0; i < args.size(); ++i) {
    const auto& argument = schema.arguments()[i];
    const py::object value = to_python(args[i], argument.real_type());
    if (!argument.kwarg_only()) {
      positional.append(value);
    } else if (with_nones || !value.is_none()) {
      keywords[argument.name().c_str()] = value;
    }
  }
  return {py::tuple(positional), keywords};
}

// What Python returned, as the values of the schema's results.
Args results_of(const Operator& op, const py::object& returned, const char* whose) {
  const auto& returns = op.schema().returns();
  std::vector<py::object> parts;
  if (returns.size() == 1) {
    parts.push_back(returned);
  } else if (py::isinstance<py::sequence>(returned) && py::len(returned) == returns.size()) {
    for (const auto& part : py::reinterpret_borrow<py::sequence>(returned)) {
      parts.push_back(py::reinterpret_borrow<py::object>(part));
    }
  } else {
    raise(whose, " ", op.name(), " must return ", returns.size(), " results.");
  }
  Args results;
  for (size_t i = 0; i < parts.size(); ++i) {
    try {
      results.push_back(from_python(parts[i], returns[i].type()));
    } catch (const py::cast_error&) {
      raise(
          whose,
          " ",
          op.name(),
          " returned ",
          py::str(py::type::of(parts[i]).attr("__name__")).cast<std::string>(),
          " as result ",
          i,
          ", which is a ",
          returns[i].type()->str(),
          ".");
    }
  }
  return results;
}

// A rule that a user has written: rule(primals, tangents, **kwargs) -> (results, tangents).
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
    const auto [positional, keywords] = arguments_of(schema, primals, /*with_nones=*/true);
    const py::object returned = function_(positional, py::tuple(tangents), **keywords);
    if (!py::isinstance<py::tuple>(returned) || py::len(returned) != 2) {
      raise("the jvp rule of ", call.op().name(), " must return (results, tangents).");
    }
    const auto pair = py::reinterpret_borrow<py::tuple>(returned);
    call.have_run(results_of(call.op(), pair[0], "the jvp rule of"));
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
          "the jvp rule of ",
          call.op().name(),
          " must return a tangent, or None, for each of its ",
          count,
          " results.");
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
      raise("the jvp rule of ", call.op().name(), " gave result ", i, " no tensor for a tangent.");
    }
    return THPVariable_Unpack(object.ptr());
  }

  static void check_size(
      const JvpCall& call, size_t i, const at::Tensor& tangent, const at::Tensor& result) {
    if (tangent.defined() && tangent.sym_sizes() != result.sym_sizes()) {
      raise(
          "the jvp rule of ",
          call.op().name(),
          " gave result ",
          i,
          " of shape ",
          result.sym_sizes(),
          " a tangent of shape ",
          tangent.sym_sizes(),
          ": they must be the same.");
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
          "the jvp rule of ",
          call.op().name(),
          " gave result ",
          i,
          ", a list of ",
          results.size(),
          " tensors, ",
          members.size(),
          " tangents: they must be as many.");
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

// One for cotangents: rule(cotangents, primals, results, **kwargs) -> gradients.
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
    const auto [positional, keywords] = arguments_of(schema, primals, /*with_nones=*/true);
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
          "the vjp rule of ",
          call.op().name(),
          " must return a tuple with a gradient, or None, for each of its ",
          count,
          " positional arguments.");
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
          "the vjp rule of ",
          call.op().name(),
          " gave argument ",
          target.arg,
          ", a list of ",
          count,
          " tensors, ",
          members.size(),
          " gradients: they must be as many.");
    }
    return members[target.member];
  }

  static void give(VjpCall& call, const Target& target, const py::object& object) {
    if (object.is_none()) {
      return;
    }
    if (!THPVariable_Check(object.ptr())) {
      raise(
          "the vjp rule of ",
          call.op().name(),
          " gave argument ",
          target.arg,
          " no tensor for a gradient, but ",
          py::str(py::type::of(object).attr("__name__")).cast<std::string>(),
          ".");
    }
    const at::Tensor gradient = THPVariable_Unpack(object.ptr());
    const c10::SymIntArrayRef sizes(target.sizes);
    if (gradient.sym_sizes() != sizes) {
      raise(
          "the vjp rule of ",
          call.op().name(),
          " gave argument ",
          target.arg,
          " of shape ",
          sizes,
          " a gradient of shape ",
          gradient.sym_sizes(),
          ": they must be the same.");
    }
    call.give(target.arg, gradient, target.member);
  }

  py::object function_;
};

const Operator& operator_named(const std::string& name, const std::string& overload) {
  const auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
  TORCH_CHECK_VALUE(handle, "torchlayers: there is no operator ", name, ".", overload);
  return Operator::of(*handle);
}

// What a rule would have to know of and does not, in words; "" where there is nothing such. NOTE
// [Hidden tensors].
std::string hidden_tensors(const std::string& name, const std::string& overload) {
  const Operator& op = operator_named(name, overload);
  if (op.hides_results) {
    return "its results";
  }
  if (op.hidden_args.empty()) {
    return "";
  }
  const c10::Argument& argument = op.schema().arguments()[op.hidden_args[0]];
  return "its argument '" + argument.name() + "' (" + argument.type()->str() + ")";
}

bool has_rule(const std::string& name, const std::string& overload) {
  return operator_named(name, overload).rule != nullptr;
}

// The rule before it, if any, stays allocated: somebody may be following it.
void register_rule(const std::string& name, const std::string& overload, py::object function) {
  operator_named(name, overload).rule = new PythonJvpRule(std::move(function));
}

bool has_vjp_rule(const std::string& name, const std::string& overload) {
  return operator_named(name, overload).vjp_rule != nullptr;
}

void register_vjp_rule(const std::string& name, const std::string& overload, py::object function) {
  const Operator& op = operator_named(name, overload);
  op.vjp_rule = new PythonVjpRule(op, std::move(function));
}

// Puts the rule that came with torchlayers in force or out of it, for tests.
void switch_vjp_rule(const std::string& name, const std::string& overload, bool on) {
  const Operator& op = operator_named(name, overload);
  op.vjp_rule = on ? Table::find_vjp(op.handle.operator_name()) : nullptr;
}

// The same of batching rules.
void switch_batching_rule(const std::string& name, const std::string& overload, bool on) {
  const Operator& op = operator_named(name, overload);
  op.batching_rule = on ? BatchingTable::find(op.handle.operator_name()) : nullptr;
}

// While it lives, the operator is being decomposed on this thread: one that is made of
// itself in the end (torch's, by way of a prim) is made of nothing.
class UnderWay {
 public:
  explicit UnderWay(const Operator& op) {
    operators().push_back(&op);
  }
  ~UnderWay() {
    operators().pop_back();
  }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

  static bool is(const Operator& op) {
    const auto& all = operators();
    return std::find(all.begin(), all.end(), &op) != all.end();
  }

 private:
  static std::vector<const Operator*>& operators() {
    thread_local std::vector<const Operator*> operators;
    return operators;
  }
};

bool decompose_in_python(const Operator& op, Args& args) {
  if (UnderWay::is(op)) {
    return false;
  }
  const UnderWay under_way(op);
  py::gil_scoped_acquire gil;
  const py::object function = py::module_::import("torchlayers.decompositions")
                                  .attr("find")(op.schema().name(), op.schema().overload_name());
  if (function.is_none()) {
    return false;
  }
  const Args own(args.end() - static_cast<std::ptrdiff_t>(op.num_args), args.end());
  const auto [positional, keywords] = arguments_of(op.schema(), own, /*with_nones=*/false);
  Args results = results_of(op, function(*positional, **keywords), "the decomposition of");
  args.resize(args.size() - op.num_args);
  args.insert(args.end(), results.begin(), results.end());
  return true;
}

} // namespace

void bind_operators(py::module_& m) {
  decompose = &decompose_in_python;
  m.def("hidden_tensors", wrap_pybind_function(&hidden_tensors));
  m.def("has_jvp_rule", wrap_pybind_function(&has_rule));
  m.def("register_jvp_rule", wrap_pybind_function(&register_rule));
  m.def("jvp_rules", wrap_pybind_function(&Table::names));
  m.def("has_vjp_rule", wrap_pybind_function(&has_vjp_rule));
  m.def("register_vjp_rule", wrap_pybind_function(&register_vjp_rule));
  m.def("switch_vjp_rule", wrap_pybind_function(&switch_vjp_rule));
  m.def("vjp_rules", wrap_pybind_function(&Table::vjp_names));
  m.def("terms_of_numbers", wrap_pybind_function(&Table::terms_of_numbers));
  m.def("switch_batching_rule", wrap_pybind_function(&switch_batching_rule));
  m.def("batching_rules", wrap_pybind_function(&BatchingTable::names));
  m.def("typed_operators", wrap_pybind_function([] { return names_of_typed(); }));
}

} // namespace torchlayers
