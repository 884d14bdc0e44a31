// Taylor mode: what an operator does to power series, for all coefficients in one step.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "core/operator.h"
#include "layers/series.h"

namespace torchlayers {

// How the coefficients of a result follow from those of the operands. Which of these an operator
// is, its rule in Python says (transforms/jet/rules), from the operator's facts.
enum class SeriesStep {
  None,
  Constant, // the result has no derivative
  Linear,   // the operator itself, on coefficients: linear, or bilinear
  View,     // a coefficient is reshaped: its memory layout may not allow the view
  Sum,      // linear, or linear in pieces, and elementwise: the terms, on coefficients
  Product,  // x y
  Quotient, // x / y
  Slope,    // y' = (a + b y + c y^2) x'
};
SeriesStep series_step_named(std::string_view name);

// The coefficients of each argument of an operator; null for constants.
using AllSeries = std::vector<const Coefficients*>;

// Runs the operator below the layer, with one result. Returns nothing, and has computed nothing, if
// this step does not apply to this call.
//
// `args` are values of the layers below. The result's coefficients are put into `result`, of its
// size and dtype; they remain empty for a constant.
std::optional<at::Tensor> push_series(
    SeriesStep step,
    const Operator& op,
    const Args& args,
    const AllSeries& series,
    size_t order,
    Coefficients& result);

} // namespace torchlayers
