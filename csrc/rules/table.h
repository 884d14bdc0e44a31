// All rules, by operator name.
#pragma once

#include <array>
#include <bitset>
#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rules/rule.h"
#include "rules/vjp_call.h"

namespace torchlayers {

// Arguments and results by their names in the operator's schema. An unnamed result is "result", if
// it is the first, or "result1", "result2", …
using Names = std::vector<std::string>;

// The signature of a written-out gradient: of these results (the first, if none are named), with
// respect to these arguments, from the values that the node saves.
struct Gradient {
  Names by;
  Names of = {};
  Names saves = {};
};

// Which elements of its arguments an element of a result depends on, where these are more than one:
// those of a line, plane, … along the dimensions of the argument `dim` (all dimensions, if the
// operator has no such argument), or of a window.
enum class Along {
  Unknown,
  Reduces,           // the whole line, which is one element of the result: sum, logsumexp
  Scans,             // those before it: cumsum
  Mixes,             // the whole line, which stays a line: softmax, fft, sort
  Matrices,          // the whole matrix, in a batch of matrices: inverse, eigh
  Windows,           // a window of the last dimensions: pooling, interpolation
  TransposedWindows, // those whose windows have it: the gradients of these
};

// The dimensions of two arguments and of the first result, in the notation of einsum:
// "bij,bjk->bik". An element of the result depends on the elements of the two that meet in it, and
// on those of further tensors that are added to it.
struct Contraction {
  size_t left = 0;
  size_t right = 0;
  const char* dims = nullptr;
  bool is_product = false; // so that a zero in one removes what meets it in the other
};

// What is known of an operator beside its derivatives. Transforms in Python read it
// (_C.operator_facts), and derive from it what they do with the operator.
struct Form {
  std::vector<Term> terms; // it is elementwise, with broadcasting, in the arguments of these
  bool is_step = false;
  bool is_linear = false;
  bool is_piecewise_linear = false;
  bool gathers = false;
  bool scatters = false;
  bool selects = false;
  // {a, b, c}, if the derivative is a + b y + c y^2, where y is the result.
  std::optional<std::array<double, 3>> slope;
  Along along = Along::Unknown;
  Contraction contraction;
};

// An operator's rules for tangents and cotangents, in one statement:
// rules["max.dim"].jvp(…).vjp(…).
class Derivatives {
 public:
  explicit Derivatives(std::string name) : name_(std::move(name)) {}

  // The tangent is written out, as a function that runs the operator and sets the tangents; or it
  // is a sum of TANGENTs.
  Derivatives& jvp(void (*written)(JvpCall&));
  Derivatives& jvp(std::same_as<Term> auto... tangents) {
    return sum({std::move(tangents)...});
  }
  // The tangent is the sum of the operator on one of these arguments' tangents at a time; or the
  // operator on all of them at once.
  Derivatives& linear_in(std::same_as<int> auto... args) {
    return linear_at({static_cast<size_t>(args)...}, /*at_once=*/false);
  }
  Derivatives& jointly_linear_in(std::same_as<int> auto... args) {
    return linear_at({static_cast<size_t>(args)...}, /*at_once=*/true);
  }

  // The gradients are VJPs, or TERMs, or written out as a function that sets them all.
  Derivatives& vjp(std::convertible_to<Vjp> auto... vjps) {
    return by_argument({Vjp(std::move(vjps))...});
  }
  Derivatives& vjp(void (*written)(VjpCall&), const Gradient& gradient);

  // The tangent is the sum of these terms, and the TERMs among them give the gradients.
  Derivatives& terms(std::same_as<Term> auto... terms) {
    return sum_and_adjoints({std::move(terms)...});
  }

  // constant: no result has a tangent or an autograd history. step: the same, except that torch
  // records a gradient of zeros.
  void constant();
  void step();

  // Linear in all its tensors together.
  Derivatives& linear();
  // The same near almost any point, up to a constant, if the tensors are real.
  Derivatives& piecewise_linear();
  // Each element of a result is an element of an argument, or zero.
  Derivatives& gathers();
  // Each element of the first argument is added to one element of the result, or to none: the
  // transpose of an operator that gathers.
  Derivatives& scatters();
  // Of one argument, in which it is elementwise: its derivative is a + b y + c y^2.
  Derivatives& has_slope(double a, double b, double c);
  // Which elements it depends on; and that each result is one of them, chosen by their values.
  Derivatives& along(Along pattern);
  Derivatives& selects(Along among);
  // A sum of products, as einsum has it; or another function of the elements that meet.
  Derivatives& contracts(size_t left, size_t right, const char* dims);
  Derivatives& pairs(size_t left, size_t right, const char* dims);

 private:
  friend class Table;

  Derivatives& sum(std::vector<Term> terms);
  Derivatives& sum_and_adjoints(std::vector<Term> terms);
  Derivatives& linear_at(std::vector<size_t> args, bool at_once);
  Derivatives& by_argument(std::vector<Vjp> vjps);
  void add_elementwise(const Term& term);

  std::string name_;
  std::unique_ptr<JvpRule> jvp_;
  std::unique_ptr<VjpRule> vjp_;
  bool is_constant_ = false;
  Form form_;
  std::bitset<64> of_numbers_; // the arguments with such a TERM. NOTE [One pass]
};

class Table {
 public:
  // Begins the statement about an operator: "mul.Tensor" is aten::mul.Tensor; operators of other
  // namespaces use their qualified names.
  Derivatives& operator[](const std::string& name);

  // Null where there is none.
  static const JvpRule* find(const c10::OperatorName& name);
  static const VjpRule* find_vjp(const c10::OperatorName& name);
  static bool is_constant(const c10::OperatorName& name);
  static const Form* find_form(const c10::OperatorName& name);

  // The names of the operators with rules, for tangents and for cotangents.
  static std::vector<std::string> names();
  static std::vector<std::string> vjp_names();
  // The names of all operators about which there is a statement.
  static std::vector<std::string> all_names();
  // The terms that are computed in one pass for small tensors: the operator, and the argument.
  static std::vector<std::pair<std::string, size_t>> terms_of_numbers();

 private:
  static const Table& instance();
  static const Derivatives* rules_of(const c10::OperatorName& name);

  std::unordered_map<std::string, Derivatives> rules_;
};

} // namespace torchlayers
