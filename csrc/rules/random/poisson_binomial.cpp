// Samples the Poisson and the binomial distribution. Each algorithm is implemented twice, for
// single numbers and for tensors, in the same steps.
//
// Where the mean is below ten, by inversion: probabilities are subtracted from one uniform number
// until it is used up, as in Kachitvichyanukul and Schmeiser (Binomial random variate generation.
// CACM 31, 1988). Above, by rejection from a transformed uniform number: Hörmann's PTRS (The
// transformed rejection method for generating Poisson random variables. Insurance: Mathematics and
// Economics 12, 1993) and BTRS (The generation of binomial random variates. JSCS 46, 1993). Each
// attempt takes one block. Logarithms of factorials use Stirling's formula, whose large terms are
// combined before they are rounded.
#include "rules/random/poisson_binomial.h"

#include <array>
#include <cmath>
#include <limits>

#include "core/aten_functions.h"
#include "rules/random/philox.h"
#include "rules/random/philox_tensors.h"

namespace torchlayers::counts {
namespace {

using at::Tensor;
using philox::Use;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kLargeMean = 10;
// No number with a smaller mean is as large, unless rounding leaves a rest of the uniform number.
constexpr int kLast = 128;
constexpr double kHalfLog2Pi = 0.91893853320467274178;

// log(x!) - ((x + 1/2) log(x + 1) - (x + 1) + log(2 pi) / 2)
double stirling_rest(double x) {
  const double z = x + 1;
  if (x < 16) {
    return std::lgamma(z) - ((x + 0.5) * std::log(z) - z + kHalfLog2Pi);
  }
  return (1.0 / 12 - (1.0 / 360 - 1.0 / 1260 / (z * z)) / (z * z)) / z;
}

Tensor stirling_rest(const Tensor& x) {
  const Tensor z = x + 1;
  const Tensor square = z * z;
  const Tensor small = at::lgamma(z) - ((x + 0.5) * z.log() - z + kHalfLog2Pi);
  const Tensor large = ((square.reciprocal() * (-1.0 / 1260) + 1.0 / 360) / -square + 1.0 / 12) / z;
  return at::where(x < 16, small, large);
}

// ---- vectorized sampling: positions of the numbers, and attempts until each is accepted

struct Places {
  Tensor key; // with a last dimension for the key's numbers
  Tensor numbers;
  at::DimVector shape; // of key and numbers together

  Places(const Tensor& key, const Tensor& parameter)
      : key(key.unsqueeze(-1)),
        numbers(at::arange(parameter.numel() / key.numel(), key.options())),
        shape(key.sizes()) {
    shape.push_back(numbers.numel());
  }

  Tensor like(const Tensor& parameter) const {
    return parameter.reshape(shape);
  }
  std::array<Tensor, 2> uniforms(Use use, int64_t attempt) const {
    return random_of_tensors::two_uniform(numbers, use, attempt, key);
  }
};

// Inversion: the number of times that the probability of k can be subtracted from u. `next`
// computes the probability of k from that of k - 1.
template <class Next>
Tensor inverted(const Tensor& is_small, Tensor u, Tensor probability, const Next& next) {
  Tensor found = at::zeros_like(u);
  Tensor is_on = is_small;
  for (int k = 1; k <= kLast; ++k) {
    is_on = is_on.logical_and(u > probability);
    if (!is_on.any().item<bool>()) {
      break;
    }
    u = at::where(is_on, u - probability, u);
    found = at::where(is_on, found + 1, found);
    probability = next(probability, k);
  }
  return found;
}

// The number that the first accepted attempt yields: `attempt` returns (number, is it accepted).
template <class Attempt>
Tensor accepted(Tensor is_open, Tensor result, const Attempt& attempt) {
  for (int64_t i = 0; is_open.any().item<bool>(); ++i) {
    const auto [number, is_taken] = attempt(i);
    const Tensor is_found = is_open.logical_and(is_taken);
    result = at::where(is_found, number, result);
    is_open = is_open.logical_and(is_found.logical_not());
  }
  return result;
}

} // namespace

double poisson(int64_t key, int64_t place, double rate) {
  if (!(rate >= 0) || std::isinf(rate)) {
    return kNaN;
  }
  if (rate < kLargeMean) {
    double u = philox::two_uniform(key, place, philox::kPoisson, 0)[0];
    double probability = std::exp(-rate);
    int k = 0;
    while (k < kLast && u > probability) {
      u -= probability;
      probability *= rate / ++k;
    }
    return k;
  }
  const double b = 0.931 + 2.53 * std::sqrt(rate);
  const double a = -0.059 + 0.02483 * b;
  const double inverse_alpha = 1.1239 + 1.1328 / (b - 3.4);
  const double v_safe = 0.9277 - 3.6224 / (b - 2);
  for (uint32_t attempt = 0;; ++attempt) {
    const auto [first, v] = philox::two_uniform(key, place, philox::kPoisson, attempt);
    const double u = first - 0.5;
    const double from_end = 0.5 - std::abs(u);
    const double k = std::floor((2 * a / from_end + b) * u + rate + 0.43);
    if (from_end >= 0.07 && v <= v_safe) {
      return k;
    }
    if (k < 0 || (from_end < 0.013 && v > from_end)) {
      continue;
    }
    const double z = k + 1;
    const double log_probability =
        (z - rate) + k * std::log(rate / z) - std::log(z) / 2 - kHalfLog2Pi - stirling_rest(k);
    if (std::log(v * inverse_alpha / (a / (from_end * from_end) + b)) <= log_probability) {
      return k;
    }
  }
}

Tensor poisson(const Tensor& key, const Tensor& all_rates) {
  const Places places(key, all_rates);
  const Tensor rate = places.like(all_rates);
  const Tensor is_rate = rate.ge(0).logical_and(rate.isfinite());
  const Tensor is_small = is_rate.logical_and(rate < kLargeMean);
  const Tensor is_large = is_rate.logical_and(rate >= kLargeMean);
  const Tensor mean = at::where(is_large, rate, kLargeMean);
  const Tensor b = mean.sqrt() * 2.53 + 0.931;
  const Tensor a = b * 0.02483 - 0.059;
  const Tensor inverse_alpha = (b - 3.4).reciprocal() * 1.1328 + 1.1239;
  const Tensor v_safe = (b - 2).reciprocal() * -3.6224 + 0.9277;
  const Tensor by_inversion = inverted(
      is_small,
      places.uniforms(philox::kPoisson, 0)[0],
      (-rate).exp(),
      [&](const Tensor& probability, int k) { return probability * (rate / k); });
  const Tensor result = accepted(is_large, at::where(is_small, by_inversion, kNaN), [&](int64_t i) {
    const auto [first, v] = places.uniforms(philox::kPoisson, i);
    const Tensor u = first - 0.5;
    const Tensor from_end = u.abs().neg() + 0.5;
    const Tensor k = ((a * 2 / from_end + b) * u + mean + 0.43).floor();
    const Tensor z = k + 1;
    const Tensor log_probability =
        (z - mean) + k * (mean / z).log() - z.log() / 2 - kHalfLog2Pi - stirling_rest(k);
    const Tensor is_below =
        (v * inverse_alpha / (a / (from_end * from_end) + b)).log() <= log_probability;
    const Tensor is_safe = from_end.ge(0.07).logical_and(v <= v_safe);
    const Tensor is_out = k.lt(0).logical_or(from_end.lt(0.013).logical_and(v > from_end));
    return std::array<Tensor, 2>{k, is_safe.logical_or(is_below.logical_and(is_out.logical_not()))};
  });
  return result.reshape(all_rates.sizes());
}

double binomial(int64_t key, int64_t place, double count, double prob) {
  if (!(count >= 0 && prob >= 0 && prob <= 1) || std::isinf(count)) {
    return kNaN;
  }
  const double n = std::floor(count);
  const double p = prob > 0.5 ? 1 - prob : prob;
  const auto either = [&](double k) { return prob > 0.5 ? n - k : k; };
  const double odds = p / (1 - p);
  if (n * p < kLargeMean) {
    double u = philox::two_uniform(key, place, philox::kBinomial, 0)[0];
    double probability = std::exp(n * std::log1p(-p));
    int k = 0;
    while (k < kLast && k < n && u > probability) {
      u -= probability;
      ++k;
      probability *= (n - k + 1) / k * odds;
    }
    return either(k);
  }
  const double spread = std::sqrt(n * p * (1 - p));
  const double b = 1.15 + 2.53 * spread;
  const double a = -0.0873 + 0.0248 * b + 0.01 * p;
  const double alpha = (2.83 + 5.1 / b) * spread;
  const double v_safe = 0.92 - 4.2 / b;
  const double m = std::floor((n + 1) * p);
  const double at_mode = (m + 0.5) * std::log((m + 1) / (odds * (n - m + 1))) + stirling_rest(m) +
                         stirling_rest(n - m);
  for (uint32_t attempt = 0;; ++attempt) {
    const auto [first, v] = philox::two_uniform(key, place, philox::kBinomial, attempt);
    const double u = first - 0.5;
    const double from_end = 0.5 - std::abs(u);
    const double k = std::floor((2 * a / from_end + b) * u + n * p + 0.5);
    if (k < 0 || k > n) {
      continue;
    }
    if (from_end >= 0.07 && v <= v_safe) {
      return either(k);
    }
    const double log_probability = at_mode + (n + 1) * std::log((n - m + 1) / (n - k + 1)) +
                                   (k + 0.5) * std::log(odds * (n - k + 1) / (k + 1)) -
                                   stirling_rest(k) - stirling_rest(n - k);
    if (std::log(v * alpha / (a / (from_end * from_end) + b)) <= log_probability) {
      return either(k);
    }
  }
}

Tensor binomial(const Tensor& key, const Tensor& all_counts, const Tensor& all_probs) {
  const Places places(key, all_counts);
  const Tensor count = places.like(all_counts);
  const Tensor prob = places.like(all_probs);
  const Tensor is_one =
      count.ge(0).logical_and(count.isfinite()).logical_and(prob >= 0).logical_and(prob <= 1);
  const Tensor is_flipped = prob > 0.5;
  const Tensor small_p = at::where(is_flipped, -prob + 1, prob);
  const Tensor is_small = is_one.logical_and(count.floor() * small_p < kLargeMean);
  const Tensor is_large = is_one.logical_and(is_small.logical_not());
  const Tensor own_odds = small_p / (-small_p + 1);
  const Tensor whole = count.floor();
  const Tensor by_inversion = inverted(
      is_small,
      places.uniforms(philox::kBinomial, 0)[0],
      (whole * at::log1p(-small_p)).exp(),
      [&](const Tensor& probability, int k) {
        // More than is left of the uniform number: nothing comes after the last number.
        return at::where(whole > k, probability * ((whole - k + 1) / k * own_odds), 2.0);
      });
  // Elements with a small mean get parameters with a large one.
  const Tensor n = at::where(is_large, whole, 4 * kLargeMean);
  const Tensor p = at::where(is_large, small_p, 0.5);
  const Tensor odds = p / (-p + 1);
  const Tensor spread = (n * p * (-p + 1)).sqrt();
  const Tensor b = spread * 2.53 + 1.15;
  const Tensor a = b * 0.0248 - 0.0873 + p * 0.01;
  const Tensor alpha = (b.reciprocal() * 5.1 + 2.83) * spread;
  const Tensor v_safe = b.reciprocal() * -4.2 + 0.92;
  const Tensor m = ((n + 1) * p).floor();
  const Tensor at_mode =
      (m + 0.5) * ((m + 1) / (odds * (n - m + 1))).log() + stirling_rest(m) + stirling_rest(n - m);
  const Tensor result = accepted(is_large, at::where(is_small, by_inversion, kNaN), [&](int64_t i) {
    const auto [first, v] = places.uniforms(philox::kBinomial, i);
    const Tensor u = first - 0.5;
    const Tensor from_end = u.abs().neg() + 0.5;
    const Tensor k = ((a * 2 / from_end + b) * u + n * p + 0.5).floor();
    const Tensor log_probability = at_mode + (n + 1) * ((n - m + 1) / (n - k + 1)).log() +
                                   (k + 0.5) * (odds * (n - k + 1) / (k + 1)).log() -
                                   stirling_rest(k) - stirling_rest(n - k);
    const Tensor is_below = (v * alpha / (a / (from_end * from_end) + b)).log() <= log_probability;
    const Tensor is_safe = from_end.ge(0.07).logical_and(v <= v_safe);
    const Tensor is_in = k.ge(0).logical_and(k <= n);
    return std::array<Tensor, 2>{k, is_in.logical_and(is_safe.logical_or(is_below))};
  });
  return at::where(is_flipped, whole - result, result).reshape(all_counts.sizes());
}

} // namespace torchlayers::counts
