// Numbers made from the words of Philox, in operations that compilers vectorize over many words.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

// Operations that round must not be fused: NOTE [Numbers of a key]. Inlined functions need these
// options too, or the caller would lose them.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=off", "no-trapping-math")
#endif
#define TORCHLAYERS_PART inline __attribute__((always_inline))

namespace torchlayers::philox {

// Halves of a word as signed numbers, which CPUs convert to floating point in one instruction.
TORCHLAYERS_PART int32_t upper_half(uint32_t word) {
  return static_cast<int32_t>(word >> 16);
}
TORCHLAYERS_PART int32_t lower_half(uint32_t word) {
  return static_cast<int32_t>(word & 0xffff);
}

template <class To, class From>
TORCHLAYERS_PART To same_bits(From from) {
  To to;
  static_assert(sizeof(To) == sizeof(From));
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

// Constants and conversions for a floating-point type, whose numbers take one word or two.
struct Single {
  using Real = float;
  using Integer = int32_t;
  static constexpr int kMantissa = 23;
  static constexpr Integer kRootOfHalf = 0x3f3504f3;
  static constexpr int kLogTerms = 4;
  static constexpr int kSineTerms = 5;

  // In (0, 1]
  TORCHLAYERS_PART static Real positive(uint32_t word, uint32_t) {
    const Real whole =
        static_cast<Real>(upper_half(word)) * 0x1p16f + static_cast<Real>(lower_half(word));
    return whole * 0x1p-32f + 0x1p-33f;
  }
  // In [-1/2, 1/2)
  TORCHLAYERS_PART static Real centred(uint32_t word, uint32_t) {
    return static_cast<Real>(static_cast<int32_t>(word & 0x3fffffff) - 0x20000000) * 0x1p-30f;
  }
};

struct Double {
  using Real = double;
  using Integer = int64_t;
  static constexpr int kMantissa = 52;
  static constexpr Integer kRootOfHalf = 0x3fe6a09e667f3bcd;
  static constexpr int kLogTerms = 10;
  static constexpr int kSineTerms = 8;

  TORCHLAYERS_PART static Real positive(uint32_t first, uint32_t second) {
    const Real whole = static_cast<Real>(static_cast<int32_t>(first >> 5)) * 0x1p26 +
                       static_cast<Real>(static_cast<int32_t>(second >> 6));
    return whole * 0x1p-53 + 0x1p-54;
  }
  TORCHLAYERS_PART static Real centred(uint32_t first, uint32_t second) {
    return static_cast<Real>(static_cast<int32_t>(first & 0x3fffffff) - 0x20000000) * 0x1p-30 +
           static_cast<Real>(static_cast<int32_t>(second >> 10)) * 0x1p-52;
  }
};

// Series by Horner's scheme, unrolled at compile time, because a loop would not be vectorized. The
// sums over n of z^n / (2n + 1), and of (-z)^n / (2n + first)!.
template <class Real, int kTerms, int n = 0>
TORCHLAYERS_PART Real artanh_series(Real z) {
  constexpr Real term = Real(1) / Real(2 * n + 1);
  if constexpr (n == kTerms) {
    return term;
  } else {
    return artanh_series<Real, kTerms, n + 1>(z) * z + term;
  }
}

constexpr double one_over_factorial(int n) {
  double product = 1;
  for (int i = 2; i <= n; ++i) {
    product *= i;
  }
  return 1 / product;
}

template <class Real, int kTerms, int kFirst, int n = 0>
TORCHLAYERS_PART Real trigonometric_series(Real z) {
  constexpr Real term = static_cast<Real>(one_over_factorial(2 * n + kFirst));
  if constexpr (n == kTerms) {
    return term;
  } else {
    return term - trigonometric_series<Real, kTerms, kFirst, n + 1>(z) * z;
  }
}

// The logarithm of 2^e m with m in [√½, √2): e log 2 + 2 artanh((m - 1) / (m + 1)).
template <class Kind>
TORCHLAYERS_PART typename Kind::Real log_of(typename Kind::Real u) {
  using Real = typename Kind::Real;
  using Integer = typename Kind::Integer;
  const Integer shifted = same_bits<Integer>(u) - Kind::kRootOfHalf;
  const Integer exponent = shifted >> Kind::kMantissa;
  const Integer rest = shifted & ((Integer{1} << Kind::kMantissa) - 1);
  const Real f = same_bits<Real>(rest + Kind::kRootOfHalf) - Real(1);
  const Real s = f / (Real(2) + f);
  const Real z = s * s;
  // The exponent fits into 32 bits, whose conversion is a single instruction.
  return static_cast<Real>(static_cast<int32_t>(exponent)) * Real(0.693147180559945309417) +
         (s + s) * artanh_series<Real, Kind::kLogTerms>(z);
}

// Turns a quadrant's upper bit into a sign bit.
template <class Integer>
TORCHLAYERS_PART Integer with_sign(Integer upper_bit) {
  using Unsigned = std::make_unsigned_t<Integer>;
  return static_cast<Integer>(static_cast<Unsigned>(upper_bit) << (8 * sizeof(Integer) - 2));
}

// The point with this radius, at an angle whose upper two bits are the quadrant.
template <class Kind>
TORCHLAYERS_PART void set_point(
    typename Kind::Real radius,
    uint32_t angle,
    uint32_t more_angle,
    typename Kind::Real& first,
    typename Kind::Real& second) {
  using Real = typename Kind::Real;
  using Integer = typename Kind::Integer;
  const Real t = Kind::centred(angle, more_angle) * Real(1.57079632679489661923);
  const Real z = t * t;
  const Real sine = trigonometric_series<Real, Kind::kSineTerms, 1>(z) * t;
  const Real cosine = trigonometric_series<Real, Kind::kSineTerms, 0>(z);
  // The quadrant swaps the two and changes their signs, by bit operations: compilers would turn a
  // selection into a branch.
  const auto quadrant = static_cast<Integer>(angle >> 30);
  const Integer exchanged =
      (same_bits<Integer>(sine) ^ same_bits<Integer>(cosine)) & -(quadrant & 1);
  const Real x = same_bits<Real>(same_bits<Integer>(cosine) ^ exchanged);
  const Real y = same_bits<Real>(same_bits<Integer>(sine) ^ exchanged);
  first = same_bits<Real>(same_bits<Integer>(radius * x) ^ with_sign<Integer>((quadrant + 1) & 2));
  second = same_bits<Real>(same_bits<Integer>(radius * y) ^ with_sign<Integer>(quadrant & 2));
}

template <class Kind>
TORCHLAYERS_PART typename Kind::Real square_of_radius(uint32_t word, uint32_t more) {
  return typename Kind::Real(-2) * log_of<Kind>(Kind::positive(word, more));
}

} // namespace torchlayers::philox

#if !defined(__clang__)
#pragma GCC pop_options
#endif
