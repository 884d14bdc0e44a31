// Colourings of sparsity patterns, as methods of a pattern's graph.
#include "sparse/coloring.h"

#include <torch/csrc/Exceptions.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/aten_functions.h"
#include "core/errors.h"
#include "python/bindings.h"

namespace torchlayers {
namespace {

namespace py = pybind11;
using sparse::Color;
using sparse::Graph;
using sparse::Order;
using sparse::Vertex;

Order order_named(const std::string& name) {
  if (name == "natural") {
    return Order::kNatural;
  }
  if (name == "largest_first") {
    return Order::kLargestFirst;
  }
  if (name == "smallest_last") {
    return Order::kSmallestLast;
  }
  TORCH_CHECK(name == "incidence_degree", "torchlayers: coloring: unknown order ", name);
  return Order::kIncidenceDegree;
}

template <class T>
at::Tensor as_tensor(const std::vector<T>& values) {
  const at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

std::span<const int64_t> numbers(const at::Tensor& tensor) {
  TORCH_CHECK(
      tensor.is_contiguous() && tensor.scalar_type() == at::kLong && tensor.dim() == 1,
      "torchlayers: coloring: expected contiguous int64 tensors of one dimension");
  return {tensor.const_data_ptr<int64_t>(), static_cast<size_t>(tensor.numel())};
}

std::shared_ptr<Graph> graph_of(const at::Tensor& from, const at::Tensor& to, Vertex size) {
  return std::make_shared<Graph>(numbers(from), numbers(to), size);
}

// Runs a colouring while other Python threads run.
template <class F>
auto without_gil(const F& f) {
  const py::gil_scoped_release release;
  return f();
}

std::optional<at::Tensor> distance_two(
    const Graph& graph, Vertex begin, Vertex end, const std::string& order, Color most) {
  const Order by = order_named(order);
  const auto colors =
      without_gil([&] { return distance_two_coloring(graph, begin, end, by, most); });
  return colors.empty() && begin < end ? std::nullopt : std::optional(as_tensor(colors));
}

std::optional<at::Tensor> star(
    const Graph& graph,
    const std::string& order,
    bool cautious,
    Vertex split,
    const std::optional<at::Tensor>& neutral,
    Color most) {
  const Order by = order_named(order);
  std::vector<bool> is_neutral(graph.size());
  if (neutral) {
    const auto given = numbers(*neutral);
    is_neutral.assign(given.begin(), given.end());
  }
  const auto colors =
      without_gil([&] { return star_coloring(graph, by, cautious, split, is_neutral, most); });
  return colors.empty() && graph.size() > 0 ? std::nullopt : std::optional(as_tensor(colors));
}

at::Tensor acyclic(const Graph& graph, const std::string& order) {
  const Order by = order_named(order);
  return as_tensor(without_gil([&] { return acyclic_coloring(graph, by); }));
}

std::pair<at::Tensor, at::Tensor> substitution_of(const Graph& graph, const at::Tensor& colors) {
  const auto given = numbers(colors);
  const auto found = sparse::substitution(graph, std::vector<Color>(given.begin(), given.end()));
  return {as_tensor(found.rows), as_tensor(found.parents)};
}

at::Tensor neutral_vertices_of(const Graph& graph, Vertex split) {
  return as_tensor(without_gil([&] { return neutral_vertices(graph, split); }));
}

} // namespace

void bind_coloring(py::module_& m) {
  using torch::wrap_pybind_function;
  py::class_<Graph, std::shared_ptr<Graph>>(
      m, "PatternGraph", "The graph of a sparsity pattern, and its greedy colorings.")
      .def(py::init(wrap_pybind_function(&graph_of)))
      .def("distance_two", wrap_pybind_function(&distance_two))
      .def("star", wrap_pybind_function(&star))
      .def("acyclic", wrap_pybind_function(&acyclic))
      .def("substitution", wrap_pybind_function(&substitution_of))
      .def("neutral_vertices", wrap_pybind_function(&neutral_vertices_of));
}

} // namespace torchlayers
