#include <algorithm>

#include "sparse/coloring.h"

namespace torchlayers::sparse {

std::vector<Color> distance_two_coloring(
    const Graph& graph, Vertex begin, Vertex end, Order order, Color most) {
  const Vertex size = end - begin;
  std::vector<int64_t> seen_in(size); // by vertex: the last visit that met it
  int64_t visit = 0;
  const auto each = [&](Vertex v, const auto& f) {
    seen_in[v] = ++visit;
    for (const Vertex w : graph.neighbors(begin + v)) {
      for (const Vertex x : graph.neighbors(w)) {
        if (seen_in[x - begin] != visit) {
          seen_in[x - begin] = visit;
          f(x - begin);
        }
      }
    }
  };
  const std::vector<Vertex> visited = order_of(order, size, each);
  std::vector<Color> colors(size, kNone);
  Forbidden forbidden(size + 1);
  for (const Vertex v : visited) {
    for (const Vertex w : graph.neighbors(begin + v)) {
      for (const Vertex x : graph.neighbors(w)) {
        if (colors[x - begin] != kNone) {
          forbidden.add(colors[x - begin], v);
        }
      }
    }
    colors[v] = forbidden.smallest(0, v);
    if (colors[v] + 1 >= most) {
      return {};
    }
  }
  return colors;
}

std::vector<bool> neutral_vertices(const Graph& graph, Vertex split) {
  std::vector<int64_t> of_columns(split), of_rows(graph.size() - split);
  for (Vertex v = 0; v < graph.size(); ++v) {
    (v < split ? of_columns[v] : of_rows[v - split]) = graph.degree(v);
  }
  Buckets columns(std::move(of_columns)), rows(std::move(of_rows));
  std::vector<bool> is_neutral(graph.size(), true);
  // The most entries of a row so far that is computed by columns, and of a column by rows.
  int64_t by_columns = 0, by_rows = 0;
  while (!rows.is_empty() && !columns.is_empty()) {
    const Vertex row = rows.smallest(), column = columns.smallest();
    const int64_t with_row = std::max(by_columns, rows.key(row));
    const int64_t with_column = std::max(by_rows, columns.key(column));
    const bool takes_row = with_row + by_rows <= by_columns + with_column;
    (takes_row ? by_columns : by_rows) = takes_row ? with_row : with_column;
    const Vertex taken = takes_row ? split + row : column;
    (takes_row ? rows : columns).remove(takes_row ? row : column);
    for (const Vertex other : graph.neighbors(taken)) {
      Buckets& others = takes_row ? columns : rows;
      const Vertex index = takes_row ? other : other - split;
      if (others.has(index)) {
        is_neutral[other] = false;
        others.change(index, others.key(index) - 1);
      }
    }
  }
  return is_neutral;
}

} // namespace torchlayers::sparse
