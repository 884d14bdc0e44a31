// Greedy colourings of graphs of patterns: each vertex in turn gets the smallest allowed colour.
#pragma once

#include <utility>
#include <vector>

#include "sparse/graph.h"
#include "sparse/orders.h"

namespace torchlayers::sparse {

// Colours the vertices from begin to end, of which none has a neighbour among them, so that those
// with a common neighbour differ (Curtis, Powell and Reid, 1974; Coleman and Moré, 1983). The
// vertices' colours are returned, or none at all if they would be `most` or more.
std::vector<Color> distance_two_coloring(
    const Graph& graph, Vertex begin, Vertex end, Order order, Color most);

// Colours all vertices but the neutral ones so that neighbours differ, each path of four coloured
// vertices has three colours, and the neighbours of a neutral vertex all differ (Gebremedhin,
// Tarafdar, Manne and Pothen, "New acyclic and star coloring algorithms with application to
// computing Hessians", 2007, algorithm 4.1, and for neutral vertices "What color is your
// Jacobian?"). Vertices from `split` on have colours from `split` on. A cautious colouring also
// keeps vertices apart that have a common neighbour without a colour yet, as Powell and Toint's
// does (1979). Where it takes more than `most` colours before `split`, or from there on, no colours
// are returned: a vertex with many neighbours, all of other colours, takes quadratic time.
std::vector<Color> star_coloring(
    const Graph& graph,
    Order order,
    bool cautious,
    Vertex split,
    const std::vector<bool>& is_neutral,
    Color most);

// Colours all vertices so that neighbours differ and each cycle has three colours (the same paper,
// algorithm 3.1).
std::vector<Color> acyclic_coloring(const Graph& graph, Order order);

// How the entries of an acyclic colouring's edges follow from each other. In the compressed matrix
// the entry of row `rows[e]` and the colour of edge e's other end holds the sum of e's value and of
// those of the edges that have e as their parent.
struct Substitution {
  std::vector<Vertex> rows;
  std::vector<int64_t> parents; // kNone for the root of a tree
};

// Raises an error if some cycle has only two colours.
Substitution substitution(const Graph& graph, const std::vector<Color>& colors);

// The vertices that can stay without a colour if a rectangular matrix, whose columns are the
// vertices before `split`, is cut into a part with few entries in each row, to be computed by
// columns, and one with few in each column, to be computed by rows (the minimum nonzero count order
// of Coleman and Verma, "The efficient computation of sparse Jacobian matrices using automatic
// differentiation", 1998).
std::vector<bool> neutral_vertices(const Graph& graph, Vertex split);

} // namespace torchlayers::sparse
