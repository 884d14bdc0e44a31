// The counter-based generator Philox-4x32 with ten rounds (Salmon, Moraes, Dror, Shaw: Parallel
// random numbers: as easy as 1, 2, 3. SC 2011), and random numbers made from its words on a CPU.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <array>
#include <cstdint>

namespace torchlayers::philox {

using Words = std::array<uint32_t, 4>;

// One block of four words.
Words block(Words counter, std::array<uint32_t, 2> key);

// The purpose of a block, the third word of its counter: one key serves all of them, and their
// blocks never coincide.
enum Use : uint32_t {
  kNumbers = 0,
  kChildren = 1,
  kFolded = 2,
  kGamma = 3,
  kPoisson = 4,
  kBinomial = 5
};

// NOTE [Numbers of a key]
// A key is an int64, whose lower and upper halves are the generator's two key words. The numbers of
// a key come from its blocks, one after the other: block b has the counter (b's lower half, b's
// upper half, use, attempt). A block yields four numbers of up to 32 bits, or two of 64. So a
// number depends only on its key and its position: not on how many numbers there are, nor on what
// computes them. Every number is computed from the words by operations that IEEE 754 defines to the
// last bit (no libm, and no fused multiply-add, which compiler options disable), here and by
// tensors (philox_tensors.cpp), so all devices agree. A normal number is one of the two that Box
// and Muller compute from two words: with 32 bits the largest is 6.7, with 64 it is 8.6, and none
// is infinite.

// Writes `of_each` numbers of each key, one key's after the other's.
void bits(const int64_t* keys, int64_t num_keys, int64_t of_each, Use use, int32_t* out);
void bits(const int64_t* keys, int64_t num_keys, int64_t of_each, Use use, int64_t* out);
// In [0, 1): multiples of 2^-24, 2^-53, 2^-11 and 2^-8 for floats, doubles, halves and bfloat16s.
template <class Number>
void uniform(const int64_t* keys, int64_t num_keys, int64_t of_each, Number* out);
template <class Number>
void normal(const int64_t* keys, int64_t num_keys, int64_t of_each, Number* out);

// A new key derived from a key and a number, by the key's block with that counter.
int64_t folded(int64_t key, int64_t data);

// The two numbers in (0, 1), of 53 bits, that a block yields.
std::array<double, 2> two_uniform(int64_t key, int64_t place, Use use, uint32_t attempt);

// Number `place` of a key, from the gamma distribution of this shape; nan where `alpha` is invalid.
double gamma(int64_t key, int64_t place, double alpha);

} // namespace torchlayers::philox
