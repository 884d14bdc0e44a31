#include <algorithm>
#include <optional>

#include "core/aten_functions.h"
#include "core/without_function_modes.h"
#include "layers/grad.h"
#include "layers/transforms.h"
#include "python/calls/calls.h"
#include "python/entry.h"
#include "python/function_modes.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

// The result of running a function inside a grad layer, ready for the backward pass.
struct Recorded {
  Tensors outputs; // at the layer's level
  Structure output_structure;
  Tensors tracked;
  Structure primals;         // of the selected arguments, a tuple
  py::object output, aux;    // outside the layer
  std::optional<Leaves> row; // the gradients of a single output, if they were computed at once
};

enum class PullsBack { Later, AtOnceIfScalar, AtOnce };

// Gradients that are DTensors get the placements of their arguments.
Leaves placed_as(const Tensors& inputs, const Tensors& gradients, Leaves results) {
  const bool are_plain = std::none_of(gradients.begin(), gradients.end(), [](const at::Tensor& g) {
    return g.defined() && holder_of(g).key_set().has(c10::DispatchKey::Python);
  });
  if (are_plain) {
    return results;
  }
  const auto place = imported("torchlayers.distributed.dtensor", "redistribute_gradients");
  return place(results, inputs).cast<Leaves>();
}

// The gradients with respect to the tracked tensors: zeros where no output depends on them.
// Differentiates the outputs that have a cotangent, or the single output if none are given.
Leaves pull_back(
    const Recorded& recorded,
    const Tensors& cotangents,
    bool retain_graph,
    bool create_graph,
    const Replaced& replaced) {
  if (recorded.row) {
    return *recorded.row;
  }
  const auto step = replaced["_autograd_grad"];
  Tensors outputs, given;
  for (size_t i = 0; i < recorded.outputs.size(); ++i) {
    const bool is_asked = cotangents.empty() || cotangents[i].defined();
    if (is_asked && (step || recorded.outputs[i].requires_grad())) {
      outputs.push_back(recorded.outputs[i]);
      if (!cotangents.empty()) {
        given.push_back(cotangents[i]);
      }
    }
  }
  const Tensors& inputs = recorded.tracked;
  if (step) {
    const py::object theirs = given.empty() ? py::none() : py::cast(given);
    return py::list(step(outputs, inputs, theirs, retain_graph, create_graph)).cast<Leaves>();
  }
  Tensors gradients(inputs.size());
  if (!outputs.empty()) {
    std::optional<WithoutFunctionModes> unseen;
    if (any_function_mode()) {
      unseen.emplace(); // a user's mode must not see the calls that torch's formulas make in Python
    }
    py::gil_scoped_release no_gil;
    gradients = vjp(outputs, inputs, given, retain_graph, create_graph, cotangents.empty());
  }
  Leaves results;
  results.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    results.push_back(
        gradients[i].defined() ? object_of(gradients[i]) : zeros_like(object_of(inputs[i])));
  }
  return placed_as(inputs, gradients, std::move(results));
}

py::object tracked(py::handle leaf, int64_t level, const Replaced& replaced) {
  py::object wrapped = wrap_all(leaf, level, replaced);
  if (replaced) {
    imported("torch._functorch.eager_transforms", "_create_differentiable")(wrapped, level);
  } else {
    tensor_of(wrapped).set_requires_grad(true);
  }
  return wrapped;
}

// A complex value that does not require grad is accepted, with gradients of zero.
bool is_pulled_back(const at::Tensor& value) {
  return value.dim() == 0 && !(value.is_complex() && value.requires_grad());
}

// Runs the function inside a grad layer.
Recorded record(const Differentiated& given, PyObject* args, PyObject* kwargs, PullsBack when) {
  const Replaced replaced(Transform::grad);
  const auto places = given.places(PyTuple_GET_SIZE(args), when == PullsBack::Later);
  Tree chosen = Tree::of(picked(args, places));
  if (!chosen.all_tensors(is_differentiable)) {
    given.refuse("refuse_arguments", py::handle(args), places);
  }
  Recorded recorded;
  recorded.primals = std::move(chosen.structure);
  const auto layer = std::make_shared<GradLayer>();
  within(layer, [&](int64_t level) -> py::object {
    for (auto& leaf : chosen.leaves) {
      leaf = tracked(leaf, level, replaced);
      recorded.tracked.push_back(tensor_of(leaf));
    }
    const auto wrapped =
        wrapped_around(args, places, recorded.primals.with(chosen.leaves), level, replaced);
    py::object wrapped_kwargs;
    if (kwargs != nullptr && PyDict_GET_SIZE(kwargs) > 0) {
      wrapped_kwargs = wrap_all(kwargs, level, replaced);
    }
    auto [output, aux] = given.split_aux(call(given.func(), wrapped, wrapped_kwargs.ptr()));
    Tree outputs = Tree::of(output);
    const bool is_one = is_tensor(output);
    if (when == PullsBack::AtOnce) {
      if (!is_one || !outputs.all_tensors(is_pulled_back)) {
        given.refuse("refuse_value", output);
      }
    } else if (outputs.leaves.empty() || !outputs.all_tensors(is_differentiable)) {
      given.refuse("refuse_outputs", output);
    }
    for (auto& leaf : outputs.leaves) {
      if (has_dead_wrapper(tensor_of(leaf))) {
        leaf = object_of(without_dead_wrappers(tensor_of(leaf)));
      }
    }
    recorded.outputs = outputs.tensors();
    if (const Operator* op = layer->operator_without_derivative()) {
      const auto is_constant = [](const at::Tensor& x) { return !x.requires_grad(); };
      if (std::ranges::all_of(recorded.outputs, is_constant)) {
        given.ask("warn_of_zeros", op->name());
      }
    }
    const at::Tensor& value = recorded.outputs.front();
    if (when == PullsBack::AtOnce ||
        (when == PullsBack::AtOnceIfScalar && is_one && value.dim() == 0 && !value.is_complex())) {
      recorded.row =
          pull_back(recorded, {}, /*retain_graph=*/false, /*create_graph=*/true, replaced);
      for (auto& gradient : *recorded.row) {
        gradient = unwrap_all(gradient, level, replaced);
      }
    }
    for (auto& leaf : outputs.leaves) {
      leaf = unwrap_all(leaf, level, replaced);
    }
    recorded.output_structure = std::move(outputs.structure);
    recorded.output = recorded.output_structure.with(outputs.leaves);
    recorded.aux = unwrap_all(aux, level, replaced);
    return py::none();
  });
  return recorded;
}

// The cotangents, if they match the outputs; None means 1 for a single element.
std::optional<Tensors> cotangents_for(const Recorded& recorded, py::handle cotangents) {
  const Tensors& outputs = recorded.outputs;
  if (cotangents.is_none() && outputs.size() == 1 && outputs[0].sym_numel() == 1) {
    return Tensors{at::ones_like(outputs[0])};
  }
  const Tree tree = Tree::of(cotangents);
  auto output = outputs.begin();
  const bool fit = tree.structure == recorded.output_structure &&
                   tree.all_tensors([&](const at::Tensor& cotangent) {
                     return cotangent.sym_sizes() == (output++)->sym_sizes();
                   });
  return fit ? std::optional(tree.tensors()) : std::nullopt;
}

} // namespace

// call_grad(given, args, kwargs): the gradients, the value and aux.
py::object call_grad(PyObject* const* passed) {
  const Differentiated given(passed[0]);
  const Recorded recorded = record(given, passed[1], passed[2], PullsBack::AtOnce);
  py::object gradients = recorded.primals.with(*recorded.row);
  if (PyLong_Check(given.argnums().ptr())) {
    gradients = gradients[py::int_(0)];
  }
  return py::make_tuple(std::move(gradients), recorded.output, recorded.aux);
}

// call_vjp(given, args, for_rows): the Recorded, the output and aux. With for_rows the gradients of
// a scalar output are computed at once, as in grad, so that no graph is kept.
py::object call_vjp(PyObject* const* passed) {
  const auto when = passed[2] == Py_True ? PullsBack::AtOnceIfScalar : PullsBack::Later;
  Recorded recorded = record(Differentiated(passed[0]), passed[1], nullptr, when);
  // The Recorded must not keep these alive.
  py::object output = std::move(recorded.output), aux = std::move(recorded.aux);
  return py::make_tuple(std::move(recorded), std::move(output), std::move(aux));
}

// call_vjp_fn(recorded, cotangents, retain_graph, create_graph): each chosen argument's gradient.
py::object call_vjp_fn(PyObject* const* passed) {
  const auto& recorded = py::handle(passed[0]).cast<const Recorded&>();
  const auto cotangents = cotangents_for(recorded, passed[1]);
  if (!cotangents) {
    const Leaves outputs = py::cast(recorded.outputs).cast<Leaves>();
    const auto output = recorded.output_structure.with(outputs);
    imported("torchlayers.transforms.vjp", "refuse_cotangents")(output, py::handle(passed[1]));
    TORCH_INTERNAL_ASSERT(false);
  }
  const bool retains = passed[2] == Py_True, creates = passed[3] == Py_True;
  return recorded.primals.with(
      pull_back(recorded, *cotangents, retains, creates, Replaced(Transform::grad)));
}

// call_vjp_of_leaves(recorded, cotangents, create_graph): the same for leaves, as a list; the
// cotangents may contain None.
py::object call_vjp_of_leaves(PyObject* const* passed) {
  const auto& recorded = py::handle(passed[0]).cast<const Recorded&>();
  Tensors cotangents;
  for (const py::handle leaf : py::reinterpret_borrow<py::list>(passed[1])) {
    cotangents.push_back(tensor_if_any(leaf));
  }
  return py::cast(
      pull_back(recorded, cotangents, true, passed[2] == Py_True, Replaced(Transform::grad)));
}

void bind_recorded(py::module_& m) {
  py::class_<Recorded>(
      m,
      "Recorded",
      "The result of running a function inside a grad layer, ready for the backward pass.")
      .def_readonly("outputs", &Recorded::outputs);
}

} // namespace torchlayers
