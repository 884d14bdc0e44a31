// All rules, by the operators' names.
#pragma once

#include <bitset>
#include <concepts>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rules/rule.h"
#include "rules/vjp_call.h"

namespace torchlayers {

// Arguments and results by their names in the operator's schema. A result that has none there is
// "result", if it is the first, or "result1", "result2", …
using Names = std::vector<std::string>;

// A gradient that is written out: of these results (of the first, if none are named), by these
// arguments, from what the node has saved.
struct Gradient {
  Names by;
  Names of = {};
  Names saves = {};
};

// What an operator does to tangents and to cotangents, in one statement:
// rules["max.dim"].jvp(…).vjp(…).
class Derivatives {
 public:
  explicit Derivatives(std::string name) : name_(std::move(name)) {}

  // The tangent is written out, by a function that runs the operator and sets the tangents; or it
  // is a sum of TANGENTs.
  Derivatives& jvp(void (*written)(JvpCall&));
  Derivatives& jvp(std::same_as<Term> auto... tangents) {
    return sum({std::move(tangents)...});
  }
  // It is the operator on one of these arguments' tangents at a time, summed up; or on all of
  // them at once.
  Derivatives& linear_in(std::same_as<int> auto... args) {
    return linear({static_cast<size_t>(args)...}, /*at_once=*/false);
  }
  Derivatives& jointly_linear_in(std::same_as<int> auto... args) {
    return linear({static_cast<size_t>(args)...}, /*at_once=*/true);
  }

  // The gradients are VJPs, or TERMs, or written out by a function that gives them all.
  Derivatives& vjp(std::convertible_to<Vjp> auto... vjps) {
    return by_argument({Vjp(std::move(vjps))...});
  }
  Derivatives& vjp(void (*written)(VjpCall&), const Gradient& gradient);

  // The tangent is the sum of these, and the gradients are those TERMs among them.
  Derivatives& terms(std::same_as<Term> auto... terms) {
    return sum_and_adjoints({std::move(terms)...});
  }

  // No result has a tangent, nor a history; or torch records a gradient of zeros all the same.
  void constant();
  void step();

 private:
  friend class Table;

  Derivatives& sum(std::vector<Term> terms);
  Derivatives& sum_and_adjoints(std::vector<Term> terms);
  Derivatives& linear(std::vector<size_t> args, bool at_once);
  Derivatives& by_argument(std::vector<Vjp> vjps);

  std::string name_;
  std::unique_ptr<JvpRule> jvp_;
  std::unique_ptr<VjpRule> vjp_;
  bool is_constant_ = false;
  std::bitset<64> of_numbers_; // the arguments by which there is such a TERM. NOTE [One pass]
};

class Table {
 public:
  // Begins the statement about an operator: "mul.Tensor" is aten::mul.Tensor; those of other
  // namespaces go by their whole names.
  Derivatives& operator[](const std::string& name);

  // Null where there is none.
  static const JvpRule* find(const c10::OperatorName& name);
  static const VjpRule* find_vjp(const c10::OperatorName& name);
  static bool is_constant(const c10::OperatorName& name);

  // The names of the operators with rules, for tangents and for cotangents.
  static std::vector<std::string> names();
  static std::vector<std::string> vjp_names();
  // The terms that small tensors are computed by in one pass: operators, and by which argument.
  static std::vector<std::pair<std::string, size_t>> terms_of_numbers();

 private:
  static const Table& instance();
  static const Derivatives* rules_of(const c10::OperatorName& name);

  std::unordered_map<std::string, Derivatives> rules_;
};

} // namespace torchlayers
