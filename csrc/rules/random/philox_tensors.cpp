// The same steps as in philox.cpp, in the same order. NOTE [Numbers of a key].
#include "rules/random/philox_tensors.h"

#include <array>
#include <cmath>
#include <limits>

#include "core/aten_functions.h"

namespace torchlayers::random_of_tensors {
namespace {

using at::Tensor;
using c10::SymInt;
using philox::Use;
using TensorWords = std::array<Tensor, 4>; // int64, with the word in the lower half

constexpr int64_t kLowerHalf = 0xffffffff;

Tensor shifted(const Tensor& x, int64_t places) {
  return at::bitwise_right_shift(x, at::Scalar(places));
}
Tensor lower(const Tensor& x) {
  return at::bitwise_and(x, at::Scalar(kLowerHalf));
}
Tensor upper(const Tensor& x) {
  return lower(shifted(x, 32));
}

TensorWords words(const Tensor& place, Use use, int64_t attempt, const Tensor& key) {
  const auto constant = [&](int64_t number) { return at::full({}, number, place.options()); };
  TensorWords counter{lower(place), upper(place), constant(use), constant(attempt)};
  std::array<Tensor, 2> keys{lower(key), upper(key)};
  for (int round = 0; round < 10; ++round) {
    const Tensor a = counter[0] * int64_t{0xD2511F53}; // wraps, which does not change the bits
    const Tensor b = counter[2] * int64_t{0xCD9E8D57};
    counter = {
        upper(b).bitwise_xor(counter[1]).bitwise_xor(keys[0]),
        lower(b),
        upper(a).bitwise_xor(counter[3]).bitwise_xor(keys[1]),
        lower(a)};
    keys = {lower(keys[0] + int64_t{0x9E3779B9}), lower(keys[1] + int64_t{0xBB67AE85})};
  }
  return counter;
}

SymInt product(c10::SymIntArrayRef size) {
  SymInt count = 1;
  for (const SymInt& each : size) {
    count = count * each;
  }
  return count;
}

// Applies `make` to the words of the blocks. It returns tensors, each with one number per block,
// which are interleaved, block after block.
template <class Make>
Tensor of_blocks(
    const Tensor& key, c10::SymIntArrayRef size, int64_t of_block, Use use, const Make& make) {
  const SymInt count = product(size);
  const SymInt blocks = (count + (of_block - 1)) / of_block;
  const Tensor places = at::arange(c10::Scalar(blocks), key.options());
  const std::vector<Tensor> numbers = make(words(places, use, /*attempt=*/0, key.unsqueeze(-1)));
  c10::SymDimVector shape(key.sym_sizes());
  shape.insert(shape.end(), size.begin(), size.end());
  return at::stack(numbers, -1).flatten(-2).narrow_symint(-1, 0, count).reshape_symint(shape);
}

// The constants for numbers of 32 bits and of 64.
struct Kind {
  at::ScalarType dtype;
  at::ScalarType integer;
  int64_t mantissa;
  int64_t root_of_half;
  int log_terms;
  int sine_terms;

  // A constant, rounded to this type.
  at::Scalar operator()(double number) const {
    return dtype == at::kFloat ? static_cast<double>(static_cast<float>(number)) : number;
  }
  // The quotient, rounded to this type.
  at::Scalar quotient(double a, double b) const {
    return dtype == at::kFloat ? static_cast<double>(static_cast<float>(a) / static_cast<float>(b))
                               : a / b;
  }
  Tensor of(const Tensor& integers) const {
    return integers.to(dtype);
  }
};

const Kind kSingle{at::kFloat, at::kInt, 23, 0x3f3504f3, 4, 5};
const Kind kDouble{at::kDouble, at::kLong, 52, 0x3fe6a09e667f3bcd, 10, 8};

Tensor positive(const Kind& kind, const Tensor& first, const Tensor& second) {
  if (kind.dtype == at::kFloat) {
    const Tensor whole =
        kind.of(shifted(first, 16)) * 0x1p16 + kind.of(at::bitwise_and(first, at::Scalar(0xffff)));
    return whole * 0x1p-32 + 0x1p-33;
  }
  const Tensor whole = kind.of(shifted(first, 5)) * 0x1p26 + kind.of(shifted(second, 6));
  return whole * 0x1p-53 + 0x1p-54;
}

Tensor centred(const Kind& kind, const Tensor& first, const Tensor& second) {
  const Tensor upper_part =
      kind.of(at::bitwise_and(first, at::Scalar(0x3fffffff)) - int64_t{0x20000000}) * 0x1p-30;
  return kind.dtype == at::kFloat ? upper_part
                                  : upper_part + kind.of(shifted(second, 10)) * 0x1p-52;
}

Tensor log_of(const Kind& kind, const Tensor& u) {
  const Tensor bits = u.view(kind.integer) - kind.root_of_half;
  const Tensor exponent = shifted(bits, kind.mantissa);
  const Tensor rest = at::bitwise_and(bits, at::Scalar((int64_t{1} << kind.mantissa) - 1));
  const Tensor f = (rest + kind.root_of_half).view(kind.dtype) - 1;
  const Tensor s = f / (f + 2);
  const Tensor z = s * s;
  Tensor series = at::full_like(z, kind.quotient(1, 2 * kind.log_terms + 1));
  for (int n = kind.log_terms - 1; n >= 0; --n) {
    series = series * z + kind.quotient(1, 2 * n + 1);
  }
  return kind.of(exponent) * kind(0.693147180559945309417) + (s + s) * series;
}

at::Scalar one_over_factorial(const Kind& kind, int n) {
  double all = 1;
  for (int i = 2; i <= n; ++i) {
    all *= i;
  }
  return kind(1 / all);
}

std::array<Tensor, 2> box_muller(
    const Kind& kind, const std::array<Tensor, 2>& radius, const std::array<Tensor, 2>& angle) {
  const Tensor r = (log_of(kind, positive(kind, radius[0], radius[1])) * -2).sqrt();
  const Tensor t = centred(kind, angle[0], angle[1]) * kind(1.57079632679489661923);
  const Tensor z = t * t;
  Tensor sine = at::full_like(z, one_over_factorial(kind, 2 * kind.sine_terms + 1));
  Tensor cosine = at::full_like(z, one_over_factorial(kind, 2 * kind.sine_terms));
  for (int n = kind.sine_terms - 1; n >= 0; --n) {
    sine = -(sine * z) + one_over_factorial(kind, 2 * n + 1);
    cosine = -(cosine * z) + one_over_factorial(kind, 2 * n);
  }
  sine = sine * t;
  const Tensor quadrant = shifted(angle[0], 30);
  const auto has = [](const Tensor& number, int64_t bit) {
    return at::bitwise_and(number, at::Scalar(bit)).ne(0);
  };
  const Tensor is_odd = has(quadrant, 1);
  const Tensor x = r * at::where(is_odd, sine, cosine);
  const Tensor y = r * at::where(is_odd, cosine, sine);
  return {at::where(has(quadrant + 1, 2), -x, x), at::where(has(quadrant, 2), -y, y)};
}

const Kind& kind_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? kDouble : kSingle;
}

} // namespace

Tensor bits(const Tensor& key, c10::SymIntArrayRef size, at::ScalarType dtype, Use use) {
  if (dtype == at::kLong) {
    return of_blocks(key, size, 2, use, [](const TensorWords& words) -> std::vector<Tensor> {
      const auto joined = [](const Tensor& first, const Tensor& second) {
        return first.bitwise_or(at::bitwise_left_shift(second, at::Scalar(32)));
      };
      return {joined(words[0], words[1]), joined(words[2], words[3])};
    });
  }
  return of_blocks(key, size, 4, use, [](const TensorWords& words) {
    std::vector<Tensor> numbers;
    for (const Tensor& word : words) { // the upper bit becomes the sign
      const auto sign = int64_t{1} << 31;
      numbers.push_back((at::bitwise_xor(word, at::Scalar(sign)) - sign).to(at::kInt));
    }
    return numbers;
  });
}

Tensor uniform(const Tensor& key, c10::SymIntArrayRef size, at::ScalarType dtype) {
  if (dtype == at::kDouble) {
    return of_blocks(
        key, size, 2, philox::kNumbers, [](const TensorWords& words) -> std::vector<Tensor> {
          const auto number = [](const Tensor& first, const Tensor& second) {
            return (kDouble.of(shifted(first, 5)) * 0x1p26 + kDouble.of(shifted(second, 6))) *
                   0x1p-53;
          };
          return {number(words[0], words[1]), number(words[2], words[3])};
        });
  }
  const int64_t digits = dtype == at::kFloat ? 24 : dtype == at::kHalf ? 11 : 8;
  return of_blocks(key, size, 4, philox::kNumbers, [&](const TensorWords& words) {
    std::vector<Tensor> numbers;
    for (const Tensor& word : words) {
      const Tensor whole = kSingle.of(shifted(word, 32 - digits));
      numbers.push_back((whole * std::ldexp(1.0, -static_cast<int>(digits))).to(dtype));
    }
    return numbers;
  });
}

Tensor normal(const Tensor& key, c10::SymIntArrayRef size, at::ScalarType dtype) {
  const Kind& kind = kind_of(dtype);
  if (dtype == at::kDouble) {
    return of_blocks(
        key, size, 2, philox::kNumbers, [&](const TensorWords& w) -> std::vector<Tensor> {
          const auto pair = box_muller(kind, {w[0], w[1]}, {w[2], w[3]});
          return {pair[0], pair[1]};
        });
  }
  return of_blocks(
      key, size, 4, philox::kNumbers, [&](const TensorWords& w) -> std::vector<Tensor> {
        const auto first = box_muller(kind, {w[0], w[0]}, {w[1], w[1]});
        const auto second = box_muller(kind, {w[2], w[2]}, {w[3], w[3]});
        return {first[0].to(dtype), first[1].to(dtype), second[0].to(dtype), second[1].to(dtype)};
      });
}

std::array<Tensor, 2> two_uniform(
    const Tensor& place, Use use, int64_t attempt, const Tensor& key) {
  const TensorWords drawn = words(place, use, attempt, key);
  return {positive(kDouble, drawn[0], drawn[1]), positive(kDouble, drawn[2], drawn[3])};
}

Tensor folded(const Tensor& key, const Tensor& data) {
  const TensorWords made = words(data, philox::kFolded, 0, key);
  return made[0].bitwise_or(at::bitwise_left_shift(made[1], at::Scalar(32)));
}

// NOTE [Gamma numbers]
Tensor gamma(const Tensor& key, const Tensor& alpha) {
  const Tensor places = at::arange(alpha.numel() / key.numel(), key.options());
  const Tensor keys = key.unsqueeze(-1);
  const Tensor shape =
      alpha.reshape({-1}).view(at::broadcast_tensors({keys, places})[0].sizes()).to(at::kDouble);
  const Tensor is_shape = shape.gt(0).logical_and(shape.isfinite());
  const Tensor is_small = shape.lt(1);
  const Tensor none = at::zeros({}, key.options());
  const Tensor d = at::where(is_small, shape + 1, shape) - 1.0 / 3;
  const Tensor c = (d * 9).sqrt().reciprocal();
  Tensor result = at::full_like(shape, std::numeric_limits<double>::quiet_NaN());
  Tensor is_open = is_shape;
  for (int64_t attempt = 0; is_open.any().item<bool>(); ++attempt) {
    const TensorWords drawn = words(places, philox::kGamma, attempt, keys);
    const Tensor x = box_muller(kDouble, {drawn[0], none}, {drawn[1], none})[0];
    const Tensor root = c * x + 1;
    const Tensor v = root * root * root;
    const Tensor bound = x * x / 2 + d - d * v + d * v.log();
    const Tensor is_taken = is_open.logical_and(v.gt(0)).logical_and(
        positive(kDouble, drawn[2], drawn[3]).log().lt(bound));
    result = at::where(is_taken, d * v, result);
    is_open = is_open.logical_and(is_taken.logical_not());
  }
  const TensorWords last = words(places, philox::kGamma, 0xffffffff, keys);
  const Tensor boost = positive(kDouble, last[2], last[3]).pow(shape.reciprocal());
  return at::where(is_small, result * boost, result).reshape(alpha.sizes()).to(alpha.dtype());
}

} // namespace torchlayers::random_of_tensors
