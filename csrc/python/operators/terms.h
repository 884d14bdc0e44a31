// Terms of elementwise operators (rules/term.h), evaluated by Python on tensors of any layer.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/operator.h"
#include "rules/term.h"

namespace torchlayers {

// The derivative of an operator's result with respect to one argument. The operator's arguments are
// passed as Python calls it, with its results.
class OperatorTerm {
 public:
  OperatorTerm(const Operator& op, const Term& term) : op_(op), term_(term) {}
  static void bind(pybind11::module_& m);

  // The tangent times the derivative; undefined for zeros.
  at::Tensor operator()(
      const at::Tensor& tangent,
      const pybind11::tuple& args,
      const pybind11::dict& kwargs,
      const std::vector<at::Tensor>& results) const;
  // The same, and its tangent along those of some arguments, by position, and of the first result.
  std::pair<at::Tensor, at::Tensor> push(
      const at::Tensor& tangent,
      const pybind11::tuple& args,
      const pybind11::dict& kwargs,
      const std::vector<at::Tensor>& results,
      const std::map<size_t, at::Tensor>& tangents,
      const std::optional<at::Tensor>& tangent_of_result) const;

 private:
  const Operator& op_;
  const Term& term_;
};

} // namespace torchlayers
