// The graph of a sparsity pattern, in compressed form.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace torchlayers::sparse {

using Vertex = int64_t;
using Color = int64_t;
constexpr Color kNone = -1; // uncoloured, or neutral

// NOTE [Graphs of patterns]
// A symmetric matrix has a vertex for each column, and an edge for each pair of entries (i, j) and
// (j, i) off its diagonal. A rectangular one has a vertex for each column, numbered first, and one
// for each row, and an edge for each entry: columns that share a row are at distance two. So
// colouring the columns or rows alone is a colouring at distance two, and colouring both, so that
// each entry can be read in one of the two compressed matrices, is a star colouring of this graph
// as it is of a symmetric matrix's (Montoison, Dalle and Gebremedhin, 2025).
class Graph {
 public:
  // Undirected edges between ends[0][k] and ends[1][k], each once, without loops.
  Graph(std::span<const Vertex> from, std::span<const Vertex> to, Vertex size);

  Vertex size() const {
    return static_cast<Vertex>(starts_.size()) - 1;
  }
  int64_t edges() const {
    return static_cast<int64_t>(neighbors_.size()) / 2;
  }
  int64_t degree(Vertex v) const {
    return starts_[v + 1] - starts_[v];
  }
  // Where v's places begin, in arrays with one place for each vertex and neighbour.
  int64_t start(Vertex v) const {
    return starts_[v];
  }
  std::span<const Vertex> neighbors(Vertex v) const {
    return {neighbors_.data() + starts_[v], static_cast<size_t>(degree(v))};
  }
  // The number of the edge to each neighbour.
  std::span<const int64_t> edges(Vertex v) const {
    return {edges_.data() + starts_[v], static_cast<size_t>(degree(v))};
  }

 private:
  std::vector<int64_t> starts_;
  std::vector<Vertex> neighbors_;
  std::vector<int64_t> edges_;
};

// The distinct colours among each vertex's neighbours, in as many places as it has neighbours.
class ColorsAround {
 public:
  explicit ColorsAround(const Graph& graph);

  // The place of a colour around v, or kNone.
  int64_t find(Vertex v, Color color) const;
  // The place of a colour that is added around v.
  int64_t add(Vertex v, Color color);
  std::span<const Color> of(Vertex v) const {
    return {colors_.data() + graph_.start(v), static_cast<size_t>(used_[v])};
  }
  int64_t start(Vertex v) const {
    return graph_.start(v);
  }

 private:
  const Graph& graph_;
  std::vector<Color> colors_;
  std::vector<int64_t> used_;
};

// The colours that the vertex that is being coloured must not have.
class Forbidden {
 public:
  explicit Forbidden(size_t colors) : by_(colors, kNone) {}

  void add(Color color, Vertex v) {
    by_[color] = v;
  }
  bool has(Color color, Vertex v) const {
    return by_[color] == v;
  }
  // The smallest allowed colour from `first` on.
  Color smallest(Color first, Vertex v) const {
    while (by_[first] == v) {
      ++first;
    }
    return first;
  }

 private:
  std::vector<Vertex> by_; // the last vertex to which the colour was forbidden
};

} // namespace torchlayers::sparse
