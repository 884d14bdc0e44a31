#include "python/operators/terms.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include <memory>

#include "layers/jvp.h"
#include "layers/transforms.h"
#include "python/entry.h"

namespace torchlayers {
namespace {

namespace py = pybind11;
using torch::wrap_pybind_function;

class TermOperands : public Operands {
 public:
  TermOperands(const Operator& op, const Args& args, const Args& results)
      : Operands(op, args.data()) {
    results_ = results.data();
  }
};

Args values_of(const Operator& op, const py::tuple& args, const py::dict& kwargs) {
  const torch::jit::ToIValueAllowNumbersAsTensors numbers(true);
  return torch::jit::createStackForSchema(
      op.schema(), args, py::reinterpret_borrow<py::kwargs>(kwargs), {});
}

void check_results(const Operator& op, const std::vector<at::Tensor>& results) {
  TORCH_CHECK_VALUE(
      results.size() == op.num_returns,
      "torchlayers: the term of ",
      op.name(),
      " takes its ",
      op.num_returns,
      " results, got ",
      results.size(),
      " tensors.");
}

py::object or_none(const at::Tensor& tensor) {
  return tensor.defined() ? py::cast(tensor) : py::none();
}

} // namespace

at::Tensor OperatorTerm::operator()(
    const at::Tensor& tangent,
    const py::tuple& args,
    const py::dict& kwargs,
    const std::vector<at::Tensor>& results) const {
  check_results(op_, results);
  const Args values = values_of(op_, args, kwargs);
  const Args computed(results.begin(), results.end());
  const py::gil_scoped_release no_gil;
  return term_(tangent, TermOperands(op_, values, computed));
}

std::pair<at::Tensor, at::Tensor> OperatorTerm::push(
    const at::Tensor& tangent,
    const py::tuple& args,
    const py::dict& kwargs,
    const std::vector<at::Tensor>& results,
    const std::map<size_t, at::Tensor>& tangents,
    const std::optional<at::Tensor>& tangent_of_result) const {
  check_results(op_, results);
  Args values = values_of(op_, args, kwargs);
  Args computed(results.begin(), results.end());
  std::pair<at::Tensor, at::Tensor> pushed;
  const auto body = [&](int64_t level) {
    const py::gil_scoped_release no_gil;
    for (const auto& [place, along] : tangents) {
      values[place] = make_dual(values[place].toTensor(), along);
    }
    if (tangent_of_result) {
      computed[0] = make_dual(results[0], *tangent_of_result);
    }
    const at::Tensor product = term_(tangent, TermOperands(op_, values, computed));
    if (product.defined()) {
      pushed = split_dual(product, level);
    }
    return py::object();
  };
  within(std::make_shared<JvpLayer>(), body);
  return pushed;
}

void OperatorTerm::bind(py::module_& m) {
  py::class_<OperatorTerm>(m, "OperatorTerm", "The derivative of an elementwise operator.")
      .def(
          "__call__",
          wrap_pybind_function([](const OperatorTerm& term,
                                  const at::Tensor& tangent,
                                  const py::tuple& args,
                                  const py::dict& kwargs,
                                  const std::vector<at::Tensor>& results) {
            return or_none(term(tangent, args, kwargs, results));
          }))
      .def(
          "push",
          wrap_pybind_function([](const OperatorTerm& term,
                                  const at::Tensor& tangent,
                                  const py::tuple& args,
                                  const py::dict& kwargs,
                                  const std::vector<at::Tensor>& results,
                                  const std::map<size_t, at::Tensor>& tangents,
                                  const std::optional<at::Tensor>& tangent_of_result) {
            const auto [value, along] =
                term.push(tangent, args, kwargs, results, tangents, tangent_of_result);
            return py::make_tuple(or_none(value), or_none(along));
          }))
      .def_property_readonly(
          "reads_result", [](const OperatorTerm& term) { return term.term_.reads.results[0]; })
      .def_property_readonly(
          "reads_argument",
          [](const OperatorTerm& term) { return term.term_.reads.args[term.term_.arg]; })
      .def_property_readonly("is_analytic", [](const OperatorTerm& term) {
        return term.term_.adjoint == Adjoint::Conjugate;
      });
}

} // namespace torchlayers
