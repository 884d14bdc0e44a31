// What torchlayers/memory_budget asks of C++.
#include "python/bindings.h"
#include "reverse/chain_plan.h"
#include "reverse/packed.h"
#include "values/shell.h"

#include <pybind11/stl.h>

namespace torchlayers {
namespace {

namespace py = pybind11;

// (forward, saving, passing, saved, [(kept, running, again), …]), a stage
using StageOfPython =
    std::tuple<double, double, int64_t, int64_t, std::vector<std::tuple<int64_t, int64_t, double>>>;

ChainPlan made(
    const std::vector<StageOfPython>& given,
    std::vector<std::vector<int64_t>> between,
    int64_t budget) {
  std::vector<Stage> stages;
  for (const auto& [forward, saving, passing, saved, ways] : given) {
    Stage& stage = stages.emplace_back(Stage{forward, saving, passing, saved, {}});
    for (const auto& [kept, running, again] : ways) {
      stage.ways.push_back({kept, running, again});
    }
  }
  return {std::move(stages), std::move(between), budget};
}

py::tuple taken_apart(const at::Tensor& tensor) {
  std::vector<at::Tensor> numbers;
  auto shell = std::make_unique<Shell>(tensor, numbers);
  return py::make_tuple(std::move(shell), std::move(numbers));
}

} // namespace

void bind_budget(py::module_& m) {
  py::class_<Shell>(m, "Shell", "What the layers have put around a tensor's numbers.")
      .def(
          "around",
          torch::wrap_pybind_function([](const Shell& self, std::vector<at::Tensor> numbers) {
            return self.around(numbers);
          }));
  m.def("taken_apart", torch::wrap_pybind_function(&taken_apart));
  m.def("packs_result", &packs_result);
  py::class_<ChainPlan>(m, "ChainPlan", "What to keep of a chain of stages within a budget.")
      .def(py::init(&made))
      .def_property_readonly("least", &ChainPlan::least)
      .def_property_readonly("cost", &ChainPlan::cost)
      .def("first", &ChainPlan::first);
}

} // namespace torchlayers
