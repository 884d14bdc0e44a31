// The orders in which greedy colouring visits vertices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "sparse/graph.h"

namespace torchlayers::sparse {

// As recommended for colouring Jacobians and Hessians by Coleman and Moré (1983) and Gebremedhin,
// Manne and Pothen, "What color is your Jacobian?" (2005). A neighbour is whatever the colouring
// compares a vertex with: one at distance one or two.
enum class Order {
  kNatural,         // by number
  kLargestFirst,    // most neighbours first
  kSmallestLast,    // last the one with the fewest neighbours, before it that of the rest, …
  kIncidenceDegree, // next the one with the most neighbours before it
};

// Vertices in lists by a key, which changes in constant time.
class Buckets {
 public:
  explicit Buckets(std::vector<int64_t> keys);

  int64_t key(Vertex v) const {
    return keys_[v];
  }
  bool has(Vertex v) const {
    return keys_[v] >= 0;
  }
  bool is_empty() const {
    return count_ == 0;
  }
  // A vertex with the smallest or largest key. Not empty.
  Vertex smallest();
  Vertex largest();
  void remove(Vertex v);
  void change(Vertex v, int64_t key);

 private:
  void insert(Vertex v, int64_t key);
  void unlink(Vertex v);

  std::vector<int64_t> keys_;
  std::vector<Vertex> heads_, next_, before_;
  int64_t count_ = 0;
  int64_t low_ = 0, high_ = 0; // bounds of the keys in use
};

// `each(v, f)` calls f with each neighbour of v, once, among vertices 0 to size.
template <class Each>
std::vector<int64_t> degrees(Vertex size, const Each& each) {
  std::vector<int64_t> found(size);
  for (Vertex v = 0; v < size; ++v) {
    each(v, [&](Vertex) { ++found[v]; });
  }
  return found;
}

template <class Each>
std::vector<Vertex> order_of(Order order, Vertex size, const Each& each) {
  std::vector<Vertex> result(size);
  std::iota(result.begin(), result.end(), 0);
  if (order == Order::kNatural) {
    return result;
  }
  if (order == Order::kLargestFirst) {
    const auto degree = degrees(size, each);
    std::stable_sort(
        result.begin(), result.end(), [&](Vertex v, Vertex w) { return degree[v] > degree[w]; });
    return result;
  }
  const bool is_smallest_last = order == Order::kSmallestLast;
  Buckets rest(is_smallest_last ? degrees(size, each) : std::vector<int64_t>(size));
  for (Vertex i = 0; i < size; ++i) {
    const Vertex v = is_smallest_last ? rest.smallest() : rest.largest();
    rest.remove(v);
    result[is_smallest_last ? size - 1 - i : i] = v;
    each(v, [&](Vertex w) {
      if (rest.has(w)) {
        rest.change(w, rest.key(w) + (is_smallest_last ? -1 : 1));
      }
    });
  }
  return result;
}

} // namespace torchlayers::sparse
