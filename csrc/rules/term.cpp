#include "rules/term.h"

#include <cctype>

#include "rules/vjp_call.h"

namespace torchlayers {
namespace {

bool is_part_of_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// The number at the end of "[1]" or ".result(1)"; 0 if there is none.
size_t number_at(std::string_view text) {
  size_t number = 0;
  for (char c : text) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) {
      break;
    }
    number = 10 * number + static_cast<size_t>(c - '0');
  }
  return number;
}

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

// The values that `c`, followed by this text, reads.
Reads read_of_call(std::string_view after) {
  Reads reads;
  if (starts_with(after, "[")) {
    reads.args.set(number_at(after.substr(1)));
    return reads;
  }
  if (starts_with(after, ".result(")) {
    reads.results.set(number_at(after.substr(8)));
    return reads;
  }
  for (std::string_view argument : {".arg(", ".optional("}) {
    if (starts_with(after, argument)) {
      reads.args.set(number_at(after.substr(argument.size())));
      return reads;
    }
  }
  for (std::string_view no_tensor :
       {".scalar(",
        ".integer(",
        ".number(",
        ".flag(",
        ".integers(",
        ".dim(",
        ".dims(",
        ".size(",
        ".sizes(",
        ".sizes_of(",
        ".dtype_of(",
        ".device_of(",
        ".is_column_major("}) {
    if (starts_with(after, no_tensor)) {
      return reads;
    }
  }
  reads.args.set();
  return reads;
}

} // namespace

Reads Reads::named_in(std::string_view expression) {
  Reads reads;
  for (size_t start = 0; start < expression.size(); ++start) {
    if (!is_part_of_name(expression[start])) {
      continue;
    }
    size_t end = start;
    while (end < expression.size() && is_part_of_name(expression[end])) {
      ++end;
    }
    const std::string_view name = expression.substr(start, end - start);
    if (name == "x") {
      reads.args.set(0);
    } else if (name == "y") {
      reads.results.set(0);
    } else if (name == "c") {
      reads.add(read_of_call(expression.substr(end)));
    }
    start = end;
  }
  return reads;
}

// A tangent is multiplied by the derivative, a cotangent by its conjugate.
at::Tensor Vjp::operator()(const at::Tensor& g, const VjpCall& call) const {
  if (of != nullptr) {
    return of(g, call);
  }
  if (!conjugates || !g.is_complex()) {
    return symmetric(g, call, reads);
  }
  const at::Tensor gradient = symmetric(g.conj(), call, reads);
  return gradient.defined() ? gradient.conj() : gradient;
}

} // namespace torchlayers
