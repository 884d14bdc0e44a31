#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>

#include <optional>
#include <string>
#include <utility>

#include "dispatch/unboxed/unboxed.h"
#include "python/bindings.h"
#include "python/operators/rules.h"
#include "python/operators/terms.h"
#include "rules/batching/families.h"
#include "rules/lookup.h"
#include "rules/small_tensors/small_kernels.h"
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

// Describes the tensors that a rule can't handle because the operator hides them; "" if there are
// none. NOTE [Hidden tensors].
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

// A previous rule stays allocated: another thread may be using it.
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

const Form& form_of(const std::string& name, const std::string& overload) {
  static const Form unknown;
  const Form* form = Table::find_form(name_in_table({name, overload}));
  return form == nullptr ? unknown : *form;
}

const char* name_of(Along along) {
  switch (along) {
    case Along::Unknown:
      return "";
    case Along::Reduces:
      return "reduces";
    case Along::Scans:
      return "scans";
    case Along::Mixes:
      return "mixes";
    case Along::Matrices:
      return "matrices";
    case Along::Windows:
      return "windows";
    case Along::TransposedWindows:
      return "transposed windows";
  }
  return "";
}

// What csrc/rules says of an operator beside its derivatives.
py::dict operator_facts(const std::string& name, const std::string& overload) {
  const Operator& op = operator_named(name, overload);
  const JvpRule* rule = op.jvp_rule;
  const Form& form = form_of(name, overload);
  std::vector<size_t> elementwise_in;
  for (const Term& term : form.terms) {
    elementwise_in.push_back(term.arg);
  }
  py::dict facts;
  facts["is_constant"] = op.is_constant;
  facts["is_step"] = form.is_step;
  facts["linear_in"] = rule != nullptr ? rule->linear_in() : std::vector<size_t>();
  facts["is_linear_together"] = rule != nullptr && rule->is_linear_together();
  facts["is_linear"] = form.is_linear;
  facts["is_piecewise_linear"] = form.is_piecewise_linear;
  facts["elementwise_in"] = elementwise_in;
  facts["gathers"] = form.gathers;
  facts["scatters"] = form.scatters;
  facts["slope"] = form.slope;
  facts["selects"] = form.selects;
  facts["along"] = name_of(form.along);
  const Contraction& contraction = form.contraction;
  facts["contracts"] = contraction.dims == nullptr
                           ? py::object(py::none())
                           : py::make_tuple(contraction.left, contraction.right, contraction.dims);
  facts["is_product"] = contraction.is_product;
  return facts;
}

// The term of an argument in which the operator is elementwise, or None.
std::optional<OperatorTerm> term_of(
    const std::string& name, const std::string& overload, size_t arg) {
  const Operator& op = operator_named(name, overload);
  for (const Term& term : form_of(name, overload).terms) {
    if (term.arg == arg) {
      return OperatorTerm(op, term);
    }
  }
  return std::nullopt;
}

// The view operator that an operator copies, as csrc/rules/lookup.h says, or None.
std::optional<std::pair<std::string, std::string>> view_copied(
    const std::string& name, const std::string& overload) {
  const auto view = view_copied_by({name, overload});
  return view ? std::optional(std::pair(view->name, view->overload_name)) : std::nullopt;
}

// Enables or disables torchlayers' own rule, for tests.
void switch_vjp_rule(const std::string& name, const std::string& overload, bool on) {
  const Operator& op = operator_named(name, overload);
  op.vjp_rule = on ? Table::find_vjp(op.handle.operator_name()) : nullptr;
}

// The same for batching rules.
void switch_batching_rule(const std::string& name, const std::string& overload, bool on) {
  const Operator& op = operator_named(name, overload);
  op.batching_rule = on ? BatchingTable::find(op.handle.operator_name()) : nullptr;
}

} // namespace

void bind_operators(py::module_& m) {
  m.def("hidden_tensors", wrap_pybind_function(&hidden_tensors));
  m.def("operator_facts", wrap_pybind_function(&operator_facts));
  m.def("term", wrap_pybind_function(&term_of));
  OperatorTerm::bind(m);
  m.def("view_copied_by", wrap_pybind_function(&view_copied));
  m.def("has_jvp_rule", wrap_pybind_function(&has_rule));
  m.def("register_jvp_rule", wrap_pybind_function(&register_rule));
  m.def("jvp_rules", wrap_pybind_function(&Table::names));
  m.def("has_vjp_rule", wrap_pybind_function(&has_vjp_rule));
  m.def("register_vjp_rule", wrap_pybind_function(&register_vjp_rule));
  m.def("switch_vjp_rule", wrap_pybind_function(&switch_vjp_rule));
  m.def("vjp_rules", wrap_pybind_function(&Table::vjp_names));
  m.def("stated_operators", wrap_pybind_function(&Table::all_names));
  m.def("terms_of_numbers", wrap_pybind_function(&Table::terms_of_numbers));
  m.def("small_kernels", wrap_pybind_function(&names_of_small_kernels));
  m.def("switch_batching_rule", wrap_pybind_function(&switch_batching_rule));
  m.def("batching_rules", wrap_pybind_function(&BatchingTable::names));
  m.def("typed_operators", wrap_pybind_function([] { return names_of_typed(); }));
}

} // namespace torchlayers
