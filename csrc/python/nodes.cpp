#include "python/nodes.h"

#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/utils/pybind.h>

#include "core/hooks.h"
#include "reverse/rule_node.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

// A class of Python's with what all nodes of torch's have, and no more: torch's own class of the
// name would read from the node what its own nodes save.
void name_type(const std::type_info& type, const std::string& name) {
  const py::gil_scoped_acquire gil;
  auto* shown = new PyTypeObject(); // for ever, with its name, as torch's are
  torch::autograd::_initFunctionPyTypeObject(
      *shown, (new std::string(name))->c_str(), nullptr, nullptr);
  torch::autograd::registerCppFunction(type, shown);
  // As torch's are, it is a node to isinstance.
  py::module_::import("torch.autograd.graph")
      .attr("Node")
      .attr("register")(py::handle(reinterpret_cast<PyObject*>(shown)));
}

} // namespace

void supply_names_of_nodes() {
  hooks.name_type_of_nodes = &name_type;
}

} // namespace torchlayers
