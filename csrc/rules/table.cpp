#include "rules/table.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <algorithm>

#include "core/torch_versions.h"
#include "rules/families.h"

namespace torchlayers {
namespace {

std::string name_of_result(const c10::FunctionSchema& schema, size_t place) {
  const std::string& name = schema.returns()[place].name();
  return !name.empty() ? name : "result" + (place == 0 ? "" : std::to_string(place));
}

Reads places_of(const Names& names, const c10::FunctionSchema& schema) {
  Reads places;
  for (const std::string& name : names) {
    bool is_found = false;
    if (const auto arg = place_of_argument(schema, name)) {
      places.args.set(*arg);
      is_found = true;
    }
    for (size_t i = 0; i < schema.returns().size() && !is_found; ++i) {
      if (name_of_result(schema, i) == name) {
        places.results.set(i);
        is_found = true;
      }
    }
    TORCH_CHECK(is_found, "torchlayers: a rule names ", name, ", which is not in ", schema);
  }
  return places;
}

} // namespace

Derivatives& Derivatives::jvp(void (*written)(JvpCall&)) {
  jvp_ = std::make_unique<Written>(written);
  return *this;
}

Derivatives& Derivatives::sum(std::vector<Term> terms) {
  for (const Term& term : terms) {
    of_numbers_[term.arg] = of_numbers_[term.arg] || term.is_of_numbers;
    add_elementwise(term);
  }
  jvp_ = std::make_unique<SumOfTerms>(std::move(terms));
  return *this;
}

Derivatives& Derivatives::linear_at(std::vector<size_t> args, bool at_once) {
  if (at_once) {
    jvp_ = std::make_unique<LinearTogether>(std::move(args));
  } else {
    jvp_ = std::make_unique<Multilinear>(std::move(args));
  }
  return *this;
}

Derivatives& Derivatives::by_argument(std::vector<Vjp> vjps) {
  for (const Vjp& vjp : vjps) {
    of_numbers_[vjp.arg] = of_numbers_[vjp.arg] || vjp.is_of_numbers;
    if (vjp.is_elementwise) {
      add_elementwise(
          {vjp.arg,
           vjp.conjugates ? Adjoint::Conjugate : Adjoint::Itself,
           vjp.reads,
           vjp.symmetric,
           /*is_elementwise=*/true});
    }
  }
  vjp_ = std::make_unique<ByArgument>(std::move(vjps));
  return *this;
}

Derivatives& Derivatives::vjp(void (*written)(VjpCall&), const Gradient& gradient) {
  const auto op = c10::Dispatcher::singleton().findSchema(torch::jit::parseName(name_));
  if (op) { // otherwise this torch lacks the operator
    const auto& schema = op->schema();
    const auto by = places_of(gradient.by, schema).args;
    const auto of = gradient.of.empty() ? 1 : places_of(gradient.of, schema).results;
    vjp_ = std::make_unique<AtOnce>(by, of, places_of(gradient.saves, schema), written);
  }
  return *this;
}

Derivatives& Derivatives::sum_and_adjoints(std::vector<Term> terms) {
  std::vector<Vjp> vjps;
  for (const Term& term : terms) {
    if (term.adjoint != Adjoint::Unknown) {
      vjps.emplace_back(term);
    }
  }
  if (!vjps.empty()) {
    by_argument(std::move(vjps));
  }
  return sum(std::move(terms));
}

void Derivatives::constant() {
  sum({});
  is_constant_ = true;
}

void Derivatives::step() {
  sum({});
  form_.is_step = true;
}

Derivatives& Derivatives::linear() {
  form_.is_linear = true;
  return piecewise_linear();
}

Derivatives& Derivatives::piecewise_linear() {
  form_.is_piecewise_linear = true;
  return *this;
}

Derivatives& Derivatives::gathers() {
  form_.gathers = true;
  return *this;
}

Derivatives& Derivatives::scatters() {
  form_.scatters = true;
  return *this;
}

Derivatives& Derivatives::has_slope(double a, double b, double c) {
  form_.slope = {a, b, c};
  return *this;
}

Derivatives& Derivatives::along(Along pattern) {
  form_.along = pattern;
  return *this;
}

Derivatives& Derivatives::selects(Along among) {
  form_.selects = true;
  return along(among).piecewise_linear();
}

Derivatives& Derivatives::contracts(size_t left, size_t right, const char* dims) {
  form_.contraction = {left, right, dims, /*is_product=*/true};
  return *this;
}

Derivatives& Derivatives::pairs(size_t left, size_t right, const char* dims) {
  form_.contraction = {left, right, dims, /*is_product=*/false};
  return *this;
}

// A statement may have a term for the tangent and one for the gradient.
void Derivatives::add_elementwise(const Term& term) {
  const auto has_arg = [&](const Term& other) { return other.arg == term.arg; };
  if (term.is_elementwise && std::ranges::none_of(form_.terms, has_arg)) {
    form_.terms.push_back(term);
  }
}

Derivatives& Table::operator[](const std::string& name) {
  const std::string full = in_namespace(name);
  const auto [place, is_new] = rules_.try_emplace(full, full);
  TORCH_INTERNAL_ASSERT(is_new, "two statements about ", name);
  return place->second;
}

const Table& Table::instance() {
  static const Table* table = [] {
    auto* all = new Table(); // outlives threads that end late
    add_families(*all);
    return all;
  }();
  return *table;
}

const Derivatives* Table::rules_of(const c10::OperatorName& name) {
  const auto& rules = instance().rules_;
  const auto found = rules.find(c10::toString(name));
  return found == rules.end() ? nullptr : &found->second;
}

const JvpRule* Table::find(const c10::OperatorName& name) {
  const Derivatives* rules = rules_of(name);
  return rules == nullptr ? nullptr : rules->jvp_.get();
}

const VjpRule* Table::find_vjp(const c10::OperatorName& name) {
  const Derivatives* rules = rules_of(name);
  return rules == nullptr ? nullptr : rules->vjp_.get();
}

bool Table::is_constant(const c10::OperatorName& name) {
  const Derivatives* rules = rules_of(name);
  return rules != nullptr && rules->is_constant_;
}

const Form* Table::find_form(const c10::OperatorName& name) {
  const Derivatives* rules = rules_of(name);
  return rules == nullptr ? nullptr : &rules->form_;
}

std::vector<std::string> Table::names() {
  std::vector<std::string> names;
  for (const auto& [name, rules] : instance().rules_) {
    if (rules.jvp_ != nullptr) {
      names.push_back(name);
    }
  }
  return names;
}

std::vector<std::string> Table::vjp_names() {
  std::vector<std::string> names;
  for (const auto& [name, rules] : instance().rules_) {
    if (rules.vjp_ != nullptr) {
      names.push_back(name);
    }
  }
  return names;
}

std::vector<std::string> Table::all_names() {
  std::vector<std::string> names;
  for (const auto& [name, rules] : instance().rules_) {
    names.push_back(name);
  }
  return names;
}

std::vector<std::pair<std::string, size_t>> Table::terms_of_numbers() {
  std::vector<std::pair<std::string, size_t>> terms;
  for (const auto& [name, rules] : instance().rules_) {
    for (size_t arg = 0; arg < rules.of_numbers_.size(); ++arg) {
      if (rules.of_numbers_[arg]) {
        terms.emplace_back(name, arg);
      }
    }
  }
  return terms;
}

} // namespace torchlayers
