// The reverse pass of a function alone, without the graph behind its inputs.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/torch_versions.h"
#include "python/bindings.h"
#include "reverse/node_kinds.h"

namespace torchlayers {
namespace {

namespace py = pybind11;
using torch::autograd::Edge;
using torch::autograd::Node;

// The node at which the graph ends. The engine captures the gradients that arrive here, and never
// runs it.
struct End : Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    return {};
  }
  std::string name() const override {
    return "torchlayers::End";
  }
};

// NOTE [Hooks of inputs]
// Autograd calls a tensor's hooks wherever its gradient is computed. A captured reverse pass is
// replayed inside an autograd node, which passes its gradients on to the caller's tensors, where
// their hooks are called. So during capture hooks must not be called, and retained gradients must
// not be set: the graph is cut, and ends in a separate node, which has no hooks. It is also cut
// between inputs that were computed from each other, because that happened outside the function.
class CutGraph {
 public:
  CutGraph(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs)
      : end_(own_node(new End())) {
    std::map<std::pair<Node*, uint32_t>, Edge> ends;
    for (const at::Tensor& input : inputs) {
      const Edge edge = torch::autograd::impl::gradient_edge(input);
      edges_.emplace_back(end_, end_->add_input_metadata(input));
      ends.emplace(std::pair(edge.function.get(), edge.input_nr), edges_.back());
    }
    std::unordered_set<Node*> seen;
    std::vector<NodePointer<Node>> waiting;
    const auto visit = [&](const NodePointer<Node>& node) {
      if (node && seen.insert(node.get()).second) {
        waiting.push_back(node);
      }
    };
    for (const at::Tensor& output : outputs) {
      visit(torch::autograd::impl::gradient_edge(output).function);
    }
    while (!waiting.empty()) {
      const auto node = std::move(waiting.back());
      waiting.pop_back();
      if (const auto* write = dynamic_cast<torch::autograd::CopySlices*>(node.get())) {
        visit(write->fn); // the write to a part, whose edges must be those of the whole
      }
      for (Edge& edge : node->next_edges()) {
        const auto found = ends.find({edge.function.get(), edge.input_nr});
        if (edge.is_valid() && found != ends.end()) {
          cut_.push_back({node, &edge, std::exchange(edge, found->second)});
        } else {
          visit(edge.function);
        }
      }
    }
  }
  CutGraph(const CutGraph&) = delete;
  CutGraph& operator=(const CutGraph&) = delete;

  // The nodes and input numbers at which the gradients of the inputs arrive.
  py::list ends() const {
    py::list found;
    for (const Edge& edge : edges_) {
      const auto node =
          py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(edge.function));
      found.append(py::make_tuple(node, edge.input_nr));
    }
    return found;
  }

  void mend() {
    for (Cut& cut : std::exchange(cut_, {})) {
      *cut.edge = std::move(cut.before);
    }
  }

 private:
  struct Cut {
    NodePointer<Node> node; // the owner of the edge
    Edge* edge;
    Edge before;
  };
  NodePointer<End> end_;
  std::vector<Edge> edges_;
  std::vector<Cut> cut_;
};

} // namespace

void bind_cut_graph(py::module_& m) {
  using torch::wrap_pybind_function;
  py::class_<CutGraph>(m, "CutGraph", "Inside, autograd's graph of outputs ends at the inputs.")
      .def(py::init<const std::vector<at::Tensor>&, const std::vector<at::Tensor>&>())
      .def("__enter__", wrap_pybind_function([](CutGraph& cut) { return cut.ends(); }))
      .def("__exit__", [](CutGraph& cut, const py::args&) { cut.mend(); });
}

} // namespace torchlayers
