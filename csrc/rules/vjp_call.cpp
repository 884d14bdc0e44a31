#include "rules/vjp_call.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/real.h>

#include <cctype>

namespace torchlayers {
namespace {

bool is_part_of_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// The number that follows, as in "[1]" and ".result(1)"; none is 0.
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

// What `c`, followed by this, reads.
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

const Target& VjpCall::target(size_t arg) const {
  for (const Target& target : targets_) {
    if (target.arg == arg) {
      return target;
    }
  }
  TORCH_INTERNAL_ASSERT(false, "no gradient by argument ", arg, " of ", op_.name());
}

bool VjpCall::wants(size_t arg) const {
  for (size_t i = 0; i < targets_.size(); ++i) {
    if (targets_[i].arg == arg && is_wanted_(i)) {
      return true;
    }
  }
  return false;
}

bool VjpCall::wants(size_t arg, size_t member) const {
  for (size_t i = 0; i < targets_.size(); ++i) {
    if (targets_[i].arg == arg && targets_[i].member == member) {
      return is_wanted_(i);
    }
  }
  return false;
}

// A gradient is of its argument's size and dtype: what broadcast is summed up again.
void VjpCall::give(size_t arg, at::Tensor gradient, size_t member) {
  if (!gradient.defined()) {
    return;
  }
  for (size_t i = 0; i < targets_.size(); ++i) {
    const Target& target = targets_[i];
    if (target.arg != arg || target.member != member || !is_wanted_(i)) {
      continue;
    }
    if (gradient.is_complex() && !c10::isComplexType(target.dtype)) {
      gradient = at::real(gradient);
    }
    if (gradient.sym_sizes() != c10::SymIntArrayRef(target.sizes)) {
      gradient = at::sum_to(std::move(gradient), c10::SymIntArrayRef(target.sizes));
    }
    if (gradient.scalar_type() != target.dtype) {
      gradient = gradient.to(target.dtype);
    }
    gradients_[i] = std::move(gradient);
    return;
  }
}

void VjpRule::know(size_t arg, const Reads& reads) {
  TORCH_INTERNAL_ASSERT(arg < known_.size());
  known_.set(arg);
  if (reads_.size() <= arg) {
    reads_.resize(arg + 1);
  }
  reads_[arg] = reads;
}

ByArgument::ByArgument(std::vector<Vjp> pulls) : pulls_(std::move(pulls)) {
  for (const Vjp& pull : pulls_) {
    know(pull.arg, pull.reads);
  }
}

// A tangent is multiplied by the derivative, a cotangent by its conjugate.
void ByArgument::vjp(VjpCall& call) const {
  const at::Tensor& g = call.cotangents()[0];
  for (const Vjp& pull : pulls_) {
    if (!call.wants(pull.arg)) {
      continue;
    }
    if (pull.of != nullptr) {
      call.give(pull.arg, pull.of(g, call));
    } else if (!pull.conjugates || !g.is_complex()) {
      call.give(pull.arg, pull.symmetric(g, call));
    } else {
      const at::Tensor gradient = pull.symmetric(g.conj(), call);
      call.give(pull.arg, gradient.defined() ? gradient.conj() : gradient);
    }
  }
}

AtOnce::AtOnce(
    std::vector<size_t> args,
    std::vector<size_t> results,
    const Reads& reads,
    void (*vjp)(VjpCall&))
    : vjp_(vjp) {
  for (size_t arg : args) {
    know(arg, reads);
  }
  results_.reset();
  for (size_t result : results) {
    results_.set(result);
  }
}

} // namespace torchlayers
