// The counter-based generator Philox-4x32 with ten rounds (Salmon, Moraes, Dror, Shaw: Parallel
// random numbers: as easy as 1, 2, 3. SC 2011), and what is made of its words on a processor.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <array>
#include <cstdint>

namespace torchlayers::philox {

using Words = std::array<uint32_t, 4>;

// One block of four words.
Words block(Words counter, std::array<uint32_t, 2> key);

// What a block is drawn for, its counter's third word: the same key serves each, and no two meet.
enum Use : uint32_t {
  kNumbers = 0,
  kChildren = 1,
  kFolded = 2,
  kGamma = 3,
  kPoisson = 4,
  kBinomial = 5
};

// NOTE [Numbers of a key]
// A key is an int64, of which the generator's two key words are the lower and the upper half. The
// numbers of a key are those of its blocks, one after the other: block b has the counter
// (b's lower half, b's upper half, use, attempt). A block is four numbers of up to 32 bits, or two
// of 64. So a number depends on its key and its place, and on nothing else: not on how many
// there are, nor on who computes them. Every number is made of the words by operations that IEEE
// 754 defines to the last bit (no libm, and no fused multiply-add, which the compiler is told),
// here and by tensors (random.cpp): all devices agree. A normal number is one of two that Box and
// Muller make of two words: with 32 bits the largest is 6.7, with 64 8.6, and none is infinite.

// So many numbers of each key, one key's after the other.
void bits(const int64_t* keys, int64_t num_keys, int64_t of_each, Use use, int32_t* out);
void bits(const int64_t* keys, int64_t num_keys, int64_t of_each, Use use, int64_t* out);
// In [0, 1), multiples of 2^-24, 2^-53, 2^-11 and 2^-8.
// Of floats, doubles, halves and bfloat16s.
template <class Number>
void uniform(const int64_t* keys, int64_t num_keys, int64_t of_each, Number* out);
template <class Number>
void normal(const int64_t* keys, int64_t num_keys, int64_t of_each, Number* out);

// A key of each key and number, by its block of this counter.
int64_t folded(int64_t key, int64_t data);

// The two numbers in (0, 1) of 53 bits that a block makes.
std::array<double, 2> two_uniform(int64_t key, int64_t place, Use use, uint32_t attempt);

// Number `place` of a key that has these shapes' gamma distribution; nan where `alpha` is no shape.
double gamma(int64_t key, int64_t place, double alpha);

} // namespace torchlayers::philox
