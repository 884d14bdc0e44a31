#include "graph/run/einsum.h"

#include <algorithm>
#include <map>
#include <set>

namespace torchlayers::graph {

namespace {

bool has(const std::string& labels, char label) {
  return labels.find(label) != std::string::npos;
}

// Removes spaces, and replaces the three dots of an ellipsis by one.
std::string tidy(const std::string& equation) {
  std::string text;
  for (const char c : equation) {
    if (c != ' ' && !(c == '.' && !text.empty() && text.back() == '.')) {
      text += c;
    }
  }
  return text;
}

std::string written(const std::string& labels) {
  const auto dot = labels.find('.');
  return dot == std::string::npos ? labels : std::string(labels).replace(dot, 1, "...");
}

// An equation without an arrow implies the ellipsis, and the labels that occur once, sorted.
std::string implied_result(const std::string& operands) {
  std::map<char, int> counts;
  for (const char c : operands) {
    ++counts[c];
  }
  std::string result;
  for (const auto& [label, count] : counts) {
    if (label == '.' || (label != ',' && count == 1)) {
      result += label;
    }
  }
  return result;
}

} // namespace

Einsum::Einsum(const std::string& equation) {
  const auto text = tidy(equation);
  const auto arrow = text.find("->");
  const auto left = text.substr(0, arrow);
  result = arrow == std::string::npos ? implied_result(left) : text.substr(arrow + 2);
  for (size_t start = 0; start <= left.size();) {
    const auto comma = std::min(left.find(',', start), left.size());
    operands.push_back(left.substr(start, comma - start));
    start = comma + 1;
  }
}

bool Einsum::is_plain() const {
  return std::all_of(operands.begin(), operands.end(), [this](const std::string& labels) {
    const bool repeats = std::set<char>(labels.begin(), labels.end()).size() < labels.size();
    return !repeats && (!has(labels, '.') || has(result, '.'));
  });
}

bool Einsum::is_alone(char label, size_t operand) const {
  for (size_t i = 0; i < operands.size(); ++i) {
    if (i != operand && has(operands[i], label)) {
      return false;
    }
  }
  return !has(result, label);
}

std::string Einsum::of_gradient(size_t operand) const {
  std::string equation = written(result);
  for (size_t i = 0; i < operands.size(); ++i) {
    if (i != operand) {
      equation += "," + written(operands[i]);
    }
  }
  std::string labels;
  for (const char label : operands[operand]) {
    if (!is_alone(label, operand)) {
      labels += label;
    }
  }
  return equation + "->" + written(labels);
}

} // namespace torchlayers::graph
