#include "python/operators.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/hooks.h"
#include "dispatch/typed/typed.h"
#include "python/arguments.h"
#include "python/rules.h"
#include "rules/batching/families.h"
#include "rules/table.h"

namespace torchlayers {
namespace {

namespace py = pybind11;
using torch::wrap_pybind_function;

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
  return operator_named(name, overload).jvp_rule != nullptr;
}

// The rule before it, if any, stays allocated: somebody may be following it.
void register_rule(const std::string& name, const std::string& overload, py::object function) {
  operator_named(name, overload).jvp_rule = new_jvp_rule(std::move(function));
}

bool has_vjp_rule(const std::string& name, const std::string& overload) {
  return operator_named(name, overload).vjp_rule != nullptr;
}

void register_vjp_rule(const std::string& name, const std::string& overload, py::object function) {
  const Operator& op = operator_named(name, overload);
  op.vjp_rule = new_vjp_rule(op, std::move(function));
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
  const auto [positional, keywords] = python_arguments(op.schema(), own, /*with_nones=*/false);
  Args results = results_from_python(op, function(*positional, **keywords), "the decomposition of");
  args.resize(args.size() - op.num_args);
  args.insert(args.end(), results.begin(), results.end());
  return true;
}

int64_t rank_in_group(const c10::IValue& group) {
  const py::gil_scoped_acquire gil;
  return py::module_::import("torchlayers.decompositions.collectives")
      .attr("rank_in_group")(torch::jit::toPyObject(group))
      .cast<int64_t>();
}

} // namespace

void bind_operators(py::module_& m) {
  hooks.decompose = &decompose_in_python;
  hooks.rank_in_group = &rank_in_group;
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
