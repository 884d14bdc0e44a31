#include <algorithm>

#include "sparse/coloring.h"

namespace torchlayers::sparse {
namespace {

// NOTE [Stars]
// The edges between two colours of a star coloring form stars: in the middle is the hub, around it
// are vertices of the other colour. So a vertex with several neighbours of one colour is the hub
// of these edges, and no star has to be kept: the number of neighbours of each colour says all. A
// path of four vertices in two colours can begin or end at the vertex v that is being coloured:
// v, w, x, y, where x is the hub of the edge to w; or v is its second: w, v, w', x, where w and w'
// have the same colour.
class StarColoring {
 public:
  StarColoring(const Graph& graph, Vertex split, const std::vector<bool>& is_neutral)
      : graph_(graph),
        split_(split),
        is_neutral_(is_neutral),
        around_(graph),
        count_(2 * graph.edges()),
        first_(2 * graph.edges()),
        hubs_(graph.size()),
        forbidden_(2 * graph.size() + 1),
        colors_(graph.size(), kNone),
        seen_by_(2 * graph.size() + 1, kNone),
        seen_(2 * graph.size() + 1) {}

  // Returns the vertex's colour, without the split.
  Color color(Vertex v, bool cautious) {
    for (const Vertex w : graph_.neighbors(v)) {
      if (colors_[w] == kNone) {
        if (cautious || is_neutral_[w]) {
          forbid_around(w, v);
        }
        continue;
      }
      const Color color = colors_[w];
      forbidden_.add(color, v);
      if (seen_by_[color] == v) {
        forbid_around(seen_[color], v);
        forbid_around(w, v);
        continue;
      }
      seen_by_[color] = v;
      seen_[color] = w;
      for (const Vertex hub : hubs_[w]) {
        if (colors_[hub] != kNone) {
          forbidden_.add(colors_[hub], v);
        }
      }
    }
    colors_[v] = forbidden_.smallest(v < split_ ? 0 : split_, v);
    for (const Vertex w : graph_.neighbors(v)) {
      add_around(w, v);
    }
    return colors_[v] - (v < split_ ? 0 : split_);
  }

  std::vector<Color> colors() && {
    return std::move(colors_);
  }

 private:
  void forbid_around(Vertex w, Vertex v) {
    for (const Color color : around_.of(w)) {
      forbidden_.add(color, v);
    }
  }

  // v, a neighbour of w, has got its colour.
  void add_around(Vertex w, Vertex v) {
    int64_t place = around_.find(w, colors_[v]);
    if (place == kNone) {
      place = around_.add(w, colors_[v]);
      first_[place] = v;
    } else {
      if (count_[place] == 1) {
        hubs_[first_[place]].push_back(w);
      }
      hubs_[v].push_back(w);
    }
    ++count_[place];
  }

  const Graph& graph_;
  const Vertex split_;
  const std::vector<bool>& is_neutral_;
  ColorsAround around_;
  std::vector<int64_t> count_;            // neighbours of a colour around a vertex, by its place
  std::vector<Vertex> first_;             // the first of them
  std::vector<std::vector<Vertex>> hubs_; // neighbours that are the hub of their edge to a vertex
  Forbidden forbidden_;
  std::vector<Color> colors_;
  std::vector<Vertex> seen_by_; // by colour: the last vertex that had a neighbour of the colour
  std::vector<Vertex> seen_;    // and the first such neighbour
};

} // namespace

std::vector<Color> star_coloring(
    const Graph& graph,
    Order order,
    bool cautious,
    Vertex split,
    const std::vector<bool>& is_neutral,
    Color most) {
  const auto each = [&](Vertex v, const auto& f) {
    const auto neighbors = graph.neighbors(v);
    std::for_each(neighbors.begin(), neighbors.end(), f);
  };
  StarColoring coloring(graph, split, is_neutral);
  for (const Vertex v : order_of(order, graph.size(), each)) {
    if (!is_neutral[v] && coloring.color(v, cautious) >= most) {
      return {};
    }
  }
  return std::move(coloring).colors();
}

} // namespace torchlayers::sparse
