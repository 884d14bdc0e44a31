// Parses equations of einsum.
#pragma once

#include <string>
#include <vector>

namespace torchlayers::graph {

struct Einsum {
  explicit Einsum(const std::string& equation);

  // Whether operators_einsum.cpp supports its gradient: no diagonals, and no sum over an ellipsis.
  bool is_plain() const;
  // The equation of an operand's gradient, from the result's cotangent and the other operands.
  // Labels that occur only in that operand are missing in the result.
  std::string of_gradient(size_t operand) const;
  bool is_alone(char label, size_t operand) const;

  std::vector<std::string> operands; // labels, "." for an ellipsis
  std::string result;
};

} // namespace torchlayers::graph
