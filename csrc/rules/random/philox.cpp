#include "rules/random/philox.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "rules/random/philox_numbers.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

// A tile of blocks is computed at once, with its loops over lanes vectorized. The options are those
// of philox_numbers.h.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=off", "no-trapping-math")
#endif
#if defined(__x86_64__) && defined(__linux__) && !defined(__clang__)
#define TORCHLAYERS_TILE __attribute__((target_clones("avx2", "default")))
#else
#define TORCHLAYERS_TILE
#endif

namespace torchlayers::philox {
namespace {

constexpr int kLanes = 32; // so many that compilers vectorize the loop instead of unrolling it

// The counters and keys of a tile's blocks.
struct Lanes {
  uint32_t key[2][kLanes];
  uint32_t counter[4][kLanes];
};

// Replaces the counters by the words of their blocks.
TORCHLAYERS_PART void run_rounds(Lanes& lanes) {
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kLanes; ++i) {
      const uint64_t a = uint64_t{0xD2511F53} * lanes.counter[0][i];
      const uint64_t b = uint64_t{0xCD9E8D57} * lanes.counter[2][i];
      lanes.counter[0][i] = static_cast<uint32_t>(b >> 32) ^ lanes.counter[1][i] ^ lanes.key[0][i];
      lanes.counter[1][i] = static_cast<uint32_t>(b);
      lanes.counter[2][i] = static_cast<uint32_t>(a >> 32) ^ lanes.counter[3][i] ^ lanes.key[1][i];
      lanes.counter[3][i] = static_cast<uint32_t>(a);
    }
    for (int i = 0; i < kLanes; ++i) {
      lanes.key[0][i] += 0x9E3779B9;
      lanes.key[1][i] += 0xBB67AE85;
    }
  }
}

// By intrinsics: where sqrt may set errno, compilers do not vectorize a loop of it.
TORCHLAYERS_PART void take_roots(float (&x)[kLanes]) {
#if defined(__SSE2__)
  for (int i = 0; i < kLanes; i += 4) {
    _mm_storeu_ps(x + i, _mm_sqrt_ps(_mm_loadu_ps(x + i)));
  }
#else
  std::transform(x, x + kLanes, x, [](float number) { return std::sqrt(number); });
#endif
}
TORCHLAYERS_PART void take_roots(double (&x)[kLanes]) {
#if defined(__SSE2__)
  for (int i = 0; i < kLanes; i += 2) {
    _mm_storeu_pd(x + i, _mm_sqrt_pd(_mm_loadu_pd(x + i)));
  }
#else
  std::transform(x, x + kLanes, x, [](double number) { return std::sqrt(number); });
#endif
}

// Two independent normal numbers for each lane.
template <class Kind>
TORCHLAYERS_PART void box_muller(
    const uint32_t (&radius)[kLanes],
    const uint32_t (&more_radius)[kLanes],
    const uint32_t (&angle)[kLanes],
    const uint32_t (&more_angle)[kLanes],
    typename Kind::Real (&first)[kLanes],
    typename Kind::Real (&second)[kLanes]) {
  typename Kind::Real r[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    r[i] = square_of_radius<Kind>(radius[i], more_radius[i]);
  }
  take_roots(r);
  for (int i = 0; i < kLanes; ++i) {
    set_point<Kind>(r[i], angle[i], more_angle[i], first[i], second[i]);
  }
}

// ---- tiles: the numbers of the blocks, one lane's after the other's

TORCHLAYERS_TILE void words_of(Lanes& lanes, uint32_t* out) {
  run_rounds(lanes);
  for (int i = 0; i < kLanes; ++i) {
    for (int word = 0; word < 4; ++word) {
      out[4 * i + word] = lanes.counter[word][i];
    }
  }
}

TORCHLAYERS_TILE void singles_of(Lanes& lanes, float* out) {
  run_rounds(lanes);
  for (int i = 0; i < kLanes; ++i) {
    for (int word = 0; word < 4; ++word) {
      out[4 * i + word] =
          static_cast<float>(static_cast<int32_t>(lanes.counter[word][i] >> 8)) * 0x1p-24f;
    }
  }
}

TORCHLAYERS_TILE void doubles_of(Lanes& lanes, double* out) {
  run_rounds(lanes);
  for (int i = 0; i < kLanes; ++i) {
    for (int half = 0; half < 2; ++half) {
      const uint32_t first = lanes.counter[2 * half][i] >> 5;
      const uint32_t second = lanes.counter[2 * half + 1][i] >> 6;
      out[2 * i + half] = (static_cast<double>(static_cast<int32_t>(first)) * 0x1p26 +
                           static_cast<double>(static_cast<int32_t>(second))) *
                          0x1p-53;
    }
  }
}

TORCHLAYERS_TILE void normal_singles_of(Lanes& lanes, float* out) {
  run_rounds(lanes);
  const auto& words = lanes.counter;
  float numbers[4][kLanes];
  box_muller<Single>(words[0], words[0], words[1], words[1], numbers[0], numbers[1]);
  box_muller<Single>(words[2], words[2], words[3], words[3], numbers[2], numbers[3]);
  for (int i = 0; i < kLanes; ++i) {
    for (int word = 0; word < 4; ++word) {
      out[4 * i + word] = numbers[word][i];
    }
  }
}

TORCHLAYERS_TILE void normal_doubles_of(Lanes& lanes, double* out) {
  run_rounds(lanes);
  const auto& words = lanes.counter;
  double numbers[2][kLanes];
  box_muller<Double>(words[0], words[1], words[2], words[3], numbers[0], numbers[1]);
  for (int i = 0; i < kLanes; ++i) {
    for (int half = 0; half < 2; ++half) {
      out[2 * i + half] = numbers[half][i];
    }
  }
}

// ---- from tiles to numbers

// The last block of a key may be used in part, and a tile may hold blocks of several keys.
template <int kOfBlock, class Number, class Tile>
void generate(
    const int64_t* keys,
    int64_t num_keys,
    int64_t of_each,
    Use use,
    Number* out,
    const Tile& tile) {
  const int64_t blocks = (of_each + kOfBlock - 1) / kOfBlock;
  const int64_t all = blocks * num_keys;
  constexpr int64_t kTilesATask = 512;
  at::parallel_for(0, (all + kLanes - 1) / kLanes, kTilesATask, [&](int64_t begin, int64_t end) {
    Lanes lanes;
    Number some[kLanes * kOfBlock];
    int64_t key = begin * kLanes / blocks;
    int64_t place = begin * kLanes % blocks; // of a block, among those of its key
    for (int64_t first = begin * kLanes; first < std::min(end * kLanes, all); first += kLanes) {
      const int64_t key_of_first = key;
      const int64_t place_of_first = place;
      for (int i = 0; i < kLanes; ++i) {
        const int64_t of = keys[std::min(key, num_keys - 1)];
        lanes.key[0][i] = static_cast<uint32_t>(of);
        lanes.key[1][i] = static_cast<uint32_t>(of >> 32);
        lanes.counter[0][i] = static_cast<uint32_t>(place);
        lanes.counter[1][i] = static_cast<uint32_t>(place >> 32);
        lanes.counter[2][i] = use;
        lanes.counter[3][i] = 0;
        if (++place == blocks) {
          place = 0;
          ++key;
        }
      }
      if ((place_of_first + kLanes) * kOfBlock <= of_each) {
        tile(lanes, out + key_of_first * of_each + place_of_first * kOfBlock);
        continue;
      }
      tile(lanes, some);
      int64_t of = key_of_first;
      int64_t at = place_of_first;
      for (int i = 0; i < kLanes && of < num_keys; ++i) {
        const int64_t count = std::min<int64_t>(kOfBlock, of_each - at * kOfBlock);
        std::copy_n(some + i * kOfBlock, count, out + of * of_each + at * kOfBlock);
        if (++at == blocks) {
          at = 0;
          ++of;
        }
      }
    }
  });
}

// Numbers of a narrower type, one for each number of a tile.
template <class Wide, class Number, class Tile, class Narrow>
void generate_narrow(
    const int64_t* keys,
    int64_t num_keys,
    int64_t of_each,
    Number* out,
    const Tile& tile,
    const Narrow& narrow) {
  generate<4>(keys, num_keys, of_each, kNumbers, out, [&](Lanes& lanes, Number* numbers) {
    Wide wide[4 * kLanes];
    tile(lanes, wide);
    std::transform(wide, wide + 4 * kLanes, numbers, narrow);
  });
}

} // namespace

void bits(const int64_t* keys, int64_t num_keys, int64_t of_each, Use use, int32_t* out) {
  generate<4>(keys, num_keys, of_each, use, out, [](Lanes& lanes, int32_t* numbers) {
    words_of(lanes, reinterpret_cast<uint32_t*>(numbers));
  });
}

void bits(const int64_t* keys, int64_t num_keys, int64_t of_each, Use use, int64_t* out) {
  generate<2>(keys, num_keys, of_each, use, out, [](Lanes& lanes, int64_t* numbers) {
    uint32_t words[4 * kLanes];
    words_of(lanes, words);
    for (int i = 0; i < 2 * kLanes; ++i) {
      numbers[i] = static_cast<int64_t>(words[2 * i] | uint64_t{words[2 * i + 1]} << 32);
    }
  });
}

// The number of random bits in a number of a narrow type.
template <class Number>
constexpr int kDigits = std::is_same_v<Number, c10::Half> ? 11 : 8;

template <class Number>
void uniform(const int64_t* keys, int64_t num_keys, int64_t of_each, Number* out) {
  if constexpr (std::is_same_v<Number, float>) {
    generate<4>(keys, num_keys, of_each, kNumbers, out, singles_of);
  } else if constexpr (std::is_same_v<Number, double>) {
    generate<2>(keys, num_keys, of_each, kNumbers, out, doubles_of);
  } else {
    constexpr int digits = kDigits<Number>;
    generate_narrow<uint32_t>(keys, num_keys, of_each, out, words_of, [](uint32_t word) {
      return Number(static_cast<float>(word >> (32 - digits)) / (1 << digits));
    });
  }
}

template <class Number>
void normal(const int64_t* keys, int64_t num_keys, int64_t of_each, Number* out) {
  if constexpr (std::is_same_v<Number, float>) {
    generate<4>(keys, num_keys, of_each, kNumbers, out, normal_singles_of);
  } else if constexpr (std::is_same_v<Number, double>) {
    generate<2>(keys, num_keys, of_each, kNumbers, out, normal_doubles_of);
  } else {
    generate_narrow<float>(keys, num_keys, of_each, out, normal_singles_of, [](float number) {
      return Number(number);
    });
  }
}

template void uniform(const int64_t*, int64_t, int64_t, float*);
template void uniform(const int64_t*, int64_t, int64_t, double*);
template void uniform(const int64_t*, int64_t, int64_t, c10::Half*);
template void uniform(const int64_t*, int64_t, int64_t, c10::BFloat16*);
template void normal(const int64_t*, int64_t, int64_t, float*);
template void normal(const int64_t*, int64_t, int64_t, double*);
template void normal(const int64_t*, int64_t, int64_t, c10::Half*);
template void normal(const int64_t*, int64_t, int64_t, c10::BFloat16*);

// ---- one block

Words block(Words counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0],
        static_cast<uint32_t>(b),
        static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1],
        static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

namespace {

Words block_of(int64_t key, int64_t place, Use use, uint32_t attempt) {
  return block(
      {static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32), use, attempt},
      {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
}

// NOTE [Gamma numbers]
// By rejection (Marsaglia, Tsang: A simple method for generating gamma variables. ACM TOMS 26,
// 2000): each attempt takes one block, which yields a normal number and a uniform one, and at least
// 95 in a hundred are accepted. For a shape below one, the number for alpha + 1 is multiplied by a
// power of another uniform number, from a block that no attempt reaches.
constexpr uint32_t kBoost = 0xffffffff;

// The normal number takes 32 bits for its radius, and 32 for its angle.
TORCHLAYERS_TILE double normal_of(uint32_t radius, uint32_t angle) {
  double first;
  double second;
  set_point<Double>(std::sqrt(square_of_radius<Double>(radius, 0)), angle, 0, first, second);
  return first;
}

double positive_of(const Words& words) {
  return Double::positive(words[2], words[3]);
}

} // namespace

std::array<double, 2> two_uniform(int64_t key, int64_t place, Use use, uint32_t attempt) {
  const Words words = block_of(key, place, use, attempt);
  return {Double::positive(words[0], words[1]), positive_of(words)};
}

int64_t folded(int64_t key, int64_t data) {
  const Words words = block_of(key, data, kFolded, 0);
  return static_cast<int64_t>(words[0] | uint64_t{words[1]} << 32);
}

double gamma(int64_t key, int64_t place, double alpha) {
  if (!(alpha > 0) || std::isinf(alpha)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const double d = (alpha < 1 ? alpha + 1 : alpha) - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (uint32_t attempt = 0;; ++attempt) {
    const Words words = block_of(key, place, kGamma, attempt);
    const double x = normal_of(words[0], words[1]);
    const double v = (1 + c * x) * (1 + c * x) * (1 + c * x);
    if (v > 0 && std::log(positive_of(words)) < x * x / 2 + d - d * v + d * std::log(v)) {
      const double boost =
          alpha < 1 ? std::pow(positive_of(block_of(key, place, kGamma, kBoost)), 1 / alpha) : 1;
      return d * v * boost;
    }
  }
}

} // namespace torchlayers::philox

#if !defined(__clang__)
#pragma GCC pop_options
#endif
