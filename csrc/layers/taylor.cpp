#include "layers/taylor.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "core/args.h"
#include "core/skip_autograd.h"
#include "layers/series_arithmetic.h"
#include "rules/small_tensors/scalar_fast_path.h"
#include "rules/table.h"

namespace torchlayers {
namespace {

using at::Tensor;

class SeriesCall final : public Operands {
 public:
  SeriesCall(const Operator& op, const Args& args, const AllSeries& series, size_t order)
      : Operands(op, args.data()), series_(series), order_(order) {
    for (size_t i = 0; i < series.size(); ++i) {
      if (series[i] != nullptr) {
        moving_.push_back(i);
      }
    }
  }

  bool push(SeriesStep step, Coefficients& found) {
    switch (step) {
      case SeriesStep::None:
        return false;
      case SeriesStep::Constant:
        run();
        return true;
      case SeriesStep::Linear:
        return linear(found);
      case SeriesStep::View:
        run();
        each(found, [&](const Tensor& c) { return c.reshape_symint(sizes(1)); });
        return true;
      case SeriesStep::Sum:
        return sum(found);
      case SeriesStep::Product:
        run();
        product(found);
        return true;
      case SeriesStep::Quotient:
        run();
        quotient(found);
        return true;
      case SeriesStep::Slope:
        return by_slope(found);
    }
    return false;
  }

 private:
  void run() {
    computed_ = all_with({});
    results_ = computed_.data();
  }
  // The coefficient k of an argument; undefined for zero.
  Tensor at(size_t i, size_t k) const {
    if (k == 0) {
      return (*this)[i];
    }
    return series_[i] == nullptr ? Tensor() : (*series_[i])[k - 1];
  }
  const Form* form() const {
    thread_local std::unordered_map<const Operator*, const Form*> forms; // the table never changes
    const auto [place, is_new] = forms.try_emplace(&op());
    if (is_new) {
      place->second = Table::find_form(op().handle.operator_name());
    }
    return place->second;
  }
  // The terms of the arguments with series; empty if one of them has none.
  std::vector<const Term*> terms() const {
    std::vector<const Term*> result;
    if (const Form* known = form()) {
      for (const Term& term : known->terms) {
        if (std::ranges::find(moving_, term.arg) != moving_.end()) {
          result.push_back(&term);
        }
      }
    }
    return result.size() == moving_.size() ? result : std::vector<const Term*>();
  }
  template <class Function>
  void each(Coefficients& found, const Function& function) const {
    for (const Tensor& coefficient : *series_[moving_[0]]) {
      found.push_back(coefficient.defined() ? function(coefficient) : coefficient);
    }
  }

  bool linear(Coefficients& found) {
    const JvpRule* rule = op().jvp_rule;
    if (rule == nullptr || moving_.size() > 2) {
      return false;
    }
    const std::vector<size_t> places = rule->linear_in();
    const auto is_linear_in = [&](size_t i) {
      return std::ranges::find(places, i) != places.end();
    };
    if (!std::ranges::all_of(moving_, is_linear_in)) {
      return false;
    }
    if (rule->is_linear_together()) { // a coefficient and a constant, for which zeros stand
      for (size_t i : places) {
        if (series_[i] == nullptr && (arg(i).isTensor() || arg(i).isList())) {
          return false;
        }
      }
      if (moving_.size() > 1) {
        return false;
      }
    }
    run();
    const size_t left = moving_[0];
    if (moving_.size() == 1) {
      each(found, [&](const Tensor& c) { return with({{left, c}}); });
      return true;
    }
    const size_t right = moving_[1];
    for (size_t k = 1; k <= order_; ++k) {
      Tensor total;
      for (size_t i = 0; i <= k; ++i) {
        const Tensor a = at(left, i), b = at(right, k - i);
        if (a.defined() && b.defined()) {
          total = added(total, with({{left, a}, {right, b}}));
        }
      }
      found.push_back(total);
    }
    return true;
  }

  bool sum(Coefficients& found) {
    const auto known = terms();
    const auto is_complex = [&](size_t i) { return (*this)[i].is_complex(); };
    if (known.empty() || (!form()->is_linear && std::ranges::any_of(moving_, is_complex))) {
      return false;
    }
    run();
    for (size_t k = 1; k <= order_; ++k) {
      Tensor total;
      for (const Term* term : known) {
        if (const Tensor c = at(term->arg, k); c.defined()) {
          total = added(total, (*term)(c, *this));
        }
      }
      found.push_back(total);
    }
    return true;
  }

  void product(Coefficients& found) const {
    if (moving_.size() == 1) {
      const Tensor& factor = (*this)[1 - moving_[0]];
      each(found, [&](const Tensor& c) { return with_product({}, c, factor); });
      return;
    }
    const bool is_square = series_[0] == series_[1];
    for (size_t k = 1; k <= order_; ++k) {
      Tensor total;
      for (size_t i = 0; i <= (is_square ? (k - 1) / 2 : k); ++i) {
        total = with_product(total, at(0, i), at(1, k - i));
      }
      if (is_square) {
        total = scaled(total, 2);
        total = k % 2 == 0 ? with_product(total, at(0, k / 2), at(0, k / 2)) : total;
      }
      found.push_back(total);
    }
  }

  // y with y b = a.
  void quotient(Coefficients& found) const {
    const Tensor& divisor = (*this)[1];
    const auto divided = [&](const Tensor& c) {
      return in_one_pass([](const auto& c, const auto& by) { return c / by; }, c, divisor);
    };
    if (moving_.size() == 1 && moving_[0] == 0) {
      each(found, divided);
      return;
    }
    for (size_t k = 1; k <= order_; ++k) {
      Tensor rest = at(0, k);
      for (size_t j = 1; j <= k; ++j) {
        rest = with_product(rest, at(1, j), k == j ? result() : found[k - j - 1], -1);
      }
      found.push_back(rest.defined() ? divided(rest) : rest);
    }
  }

  // y' = s x' with s = a + b y + c y^2.
  bool by_slope(Coefficients& found) {
    const auto known = terms();
    if (known.size() != 1 || !form()->slope) {
      return false;
    }
    run();
    const auto [a, b, c] = *form()->slope;
    const size_t x = moving_[0];
    const double scale = c == 0 ? b : b != 0 ? 1 : 2 * c; // of the coefficients of s that are kept
    std::vector<Tensor> y = {result()};
    std::vector<Tensor> s = {Tensor()};
    for (size_t k = 1; k <= order_; ++k) {
      Tensor total = at(x, k).defined() ? (*known[0])(at(x, k), *this) : Tensor();
      for (size_t j = k - 1; j > 0; --j) {
        const double share = static_cast<double>(j) / static_cast<double>(k);
        total = with_product(total, at(x, j), s[k - j], scale * share);
      }
      y.push_back(total);
      found.push_back(total);
      if (k < order_) {
        s.push_back(slope_coefficient(y, k, b, c));
      }
    }
    return true;
  }

  const AllSeries& series_;
  const size_t order_;
  std::vector<size_t> moving_; // the arguments with series
  Args computed_;
};

bool are_plain(const Operator& op, const Args& args, const AllSeries& series) {
  const auto is_other = [](const Tensor& tensor) { return tensor.defined() && !is_plain(tensor); };
  return !any_tensor(args, op.num_args, is_other) &&
         std::ranges::none_of(series, [&](const Coefficients* coefficients) {
           return coefficients != nullptr && std::ranges::any_of(*coefficients, is_other);
         });
}

} // namespace

SeriesStep series_step_named(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, SeriesStep>, 7> kSteps = {{
      {"constant", SeriesStep::Constant},
      {"linear", SeriesStep::Linear},
      {"view", SeriesStep::View},
      {"sum", SeriesStep::Sum},
      {"product", SeriesStep::Product},
      {"quotient", SeriesStep::Quotient},
      {"slope", SeriesStep::Slope},
  }};
  const auto named = [&](const auto& step) { return step.first == name; };
  const auto* const step = std::ranges::find_if(kSteps, named);
  return step == kSteps.end() ? SeriesStep::None : step->second;
}

std::optional<Tensor> push_series(
    SeriesStep step,
    const Operator& op,
    const Args& args,
    const AllSeries& series,
    size_t order,
    Coefficients& result) {
  SeriesCall call(op, args, series, order);
  {
    std::optional<c10::impl::ExcludeDispatchKeyGuard> without_autograd; // NOTE [Skipping autograd]
    if (may_skip_autograd(op) && nothing_is_below() && are_plain(op, args, series)) {
      without_autograd.emplace(c10::autograd_dispatch_keyset);
    }
    if (!call.push(step, result)) {
      return std::nullopt;
    }
  }
  const Tensor value = call.result();
  if (!is_differentiable(value) || std::ranges::none_of(result, &Tensor::defined)) {
    result.clear();
  }
  for (Tensor& coefficient : result) {
    coefficient = fitted(coefficient, value);
  }
  return value;
}

} // namespace torchlayers
