#include <algorithm>
#include <array>
#include <utility>

#include "core/errors.h"
#include "sparse/coloring.h"

namespace torchlayers::sparse {
namespace {

// Disjoint sets, joined by pointing one at the other.
class Sets {
 public:
  explicit Sets(int64_t most) {
    parents_.reserve(most);
  }
  int64_t make() {
    parents_.push_back(static_cast<int64_t>(parents_.size()));
    return parents_.back();
  }
  int64_t find(int64_t set) {
    while (parents_[set] != set) {
      parents_[set] = parents_[parents_[set]];
      set = parents_[set];
    }
    return set;
  }
  void join(int64_t one, int64_t other) {
    parents_[find(one)] = find(other);
  }

 private:
  std::vector<int64_t> parents_;
};

// The edges between two colours form trees. All edges of a vertex to neighbours of one colour are
// in the same tree, so a tree is noted by the place of a colour around a vertex.
class AcyclicColoring {
 public:
  explicit AcyclicColoring(const Graph& graph)
      : graph_(graph),
        around_(graph),
        trees_(2 * graph.edges(), kNone),
        sets_(2 * graph.edges()),
        seen_by_(2 * graph.edges(), kNone),
        forbidden_(graph.size() + 1),
        colors_(graph.size(), kNone) {}

  void color(Vertex v) {
    for (const Vertex w : graph_.neighbors(v)) {
      if (colors_[w] == kNone) {
        continue;
      }
      forbidden_.add(colors_[w], v);
      int64_t place = around_.start(w);
      for (const Color color : around_.of(w)) {
        // With this colour, v would close a cycle if the tree reaches v by another neighbour too.
        const int64_t tree = sets_.find(trees_[place++]);
        if (seen_by_[tree] == v) {
          forbidden_.add(color, v);
        }
        seen_by_[tree] = v;
      }
    }
    colors_[v] = forbidden_.smallest(0, v);
    for (const Vertex w : graph_.neighbors(v)) {
      if (colors_[w] != kNone) {
        sets_.join(tree_at(v, colors_[w]), tree_at(w, colors_[v]));
      }
    }
  }

  std::vector<Color> colors() && {
    return std::move(colors_);
  }

 private:
  int64_t tree_at(Vertex v, Color color) {
    int64_t place = around_.find(v, color);
    if (place == kNone) {
      place = around_.add(v, color);
      trees_[place] = sets_.make();
    }
    return trees_[place];
  }

  const Graph& graph_;
  ColorsAround around_;
  std::vector<int64_t> trees_; // by place
  Sets sets_;
  std::vector<Vertex> seen_by_; // by tree: the last vertex with a neighbour in it
  Forbidden forbidden_;
  std::vector<Color> colors_;
};

} // namespace

std::vector<Color> acyclic_coloring(const Graph& graph, Order order) {
  const auto each = [&](Vertex v, const auto& f) {
    const auto neighbors = graph.neighbors(v);
    std::for_each(neighbors.begin(), neighbors.end(), f);
  };
  AcyclicColoring coloring(graph);
  for (const Vertex v : order_of(order, graph.size(), each)) {
    coloring.color(v);
  }
  return std::move(coloring).colors();
}

Substitution substitution(const Graph& graph, const std::vector<Color>& colors) {
  ColorsAround around(graph);
  // By place: how many edges are not yet solved; their sum, as a number, so that the last one is
  // known; and its solved ones, as a list through `parents`, whose parent will be the last one.
  std::vector<int64_t> count(2 * graph.edges()), sum(2 * graph.edges());
  std::vector<int64_t> solved(2 * graph.edges(), kNone);
  std::vector<std::array<Vertex, 2>> ends(graph.edges());
  std::vector<std::pair<Vertex, int64_t>> waiting; // a vertex and a place with one edge
  for (Vertex v = 0; v < graph.size(); ++v) {
    const auto neighbors = graph.neighbors(v);
    const auto edges = graph.edges(v);
    for (size_t k = 0; k < neighbors.size(); ++k) {
      int64_t place = around.find(v, colors[neighbors[k]]);
      if (place == kNone) {
        place = around.add(v, colors[neighbors[k]]);
      }
      ++count[place];
      sum[place] += edges[k];
      ends[edges[k]] = {v, neighbors[k]};
    }
    for (size_t k = 0; k < around.of(v).size(); ++k) {
      if (count[around.start(v) + k] == 1) {
        waiting.emplace_back(v, around.start(v) + k);
      }
    }
  }
  Substitution found{
      std::vector<Vertex>(graph.edges(), kNone), std::vector<int64_t>(graph.edges(), kNone)};
  // parents[e] is the next of the solved edges while e is in the list of a place.
  for (size_t next = 0; next < waiting.size(); ++next) {
    const auto [v, place] = waiting[next];
    if (count[place] != 1) { // its edge was solved at the other end: the root of a tree
      continue;
    }
    const int64_t edge = sum[place];
    const Vertex w = ends[edge][0] == v ? ends[edge][1] : ends[edge][0];
    found.rows[edge] = v;
    for (int64_t child = solved[place]; child != kNone;) {
      child = std::exchange(found.parents[child], edge);
    }
    count[place] = 0;
    const int64_t other = around.find(w, colors[v]);
    sum[other] -= edge;
    found.parents[edge] = std::exchange(solved[other], edge);
    if (--count[other] == 1) {
      waiting.emplace_back(w, other);
    } else if (count[other] == 0) { // w was the other end of the root
      for (int64_t child = solved[other]; child != kNone;) {
        child = std::exchange(found.parents[child], kNone);
      }
    }
  }
  TORCH_CHECK(
      std::find(found.rows.begin(), found.rows.end(), kNone) == found.rows.end(),
      "torchlayers: coloring: these colors are not acyclic: a cycle has only two colors.");
  return found;
}

} // namespace torchlayers::sparse
