#include "sparse/graph.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace torchlayers::sparse {

Graph::Graph(std::span<const Vertex> from, std::span<const Vertex> to, Vertex size)
    : starts_(size + 1), neighbors_(2 * from.size()), edges_(2 * from.size()) {
  for (size_t k = 0; k < from.size(); ++k) {
    ++starts_[from[k] + 1];
    ++starts_[to[k] + 1];
  }
  std::partial_sum(starts_.begin(), starts_.end(), starts_.begin());
  std::vector<int64_t> next(starts_.begin(), starts_.end() - 1);
  for (size_t k = 0; k < from.size(); ++k) {
    for (const auto& [v, w] : {std::pair(from[k], to[k]), std::pair(to[k], from[k])}) {
      const int64_t place = next[v]++;
      neighbors_[place] = w;
      edges_[place] = static_cast<int64_t>(k);
    }
  }
}

ColorsAround::ColorsAround(const Graph& graph)
    : graph_(graph), colors_(2 * graph.edges()), used_(graph.size()) {}

int64_t ColorsAround::find(Vertex v, Color color) const {
  const auto colors = of(v);
  const auto found = std::find(colors.begin(), colors.end(), color);
  return found == colors.end() ? kNone : graph_.start(v) + (found - colors.begin());
}

int64_t ColorsAround::add(Vertex v, Color color) {
  const int64_t place = graph_.start(v) + used_[v]++;
  colors_[place] = color;
  return place;
}

} // namespace torchlayers::sparse
