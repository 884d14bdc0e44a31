#include "layers/jvp.h"
#include "layers/transforms.h"
#include "python/calls/calls.h"
#include "python/entry.h"
#include "python/function_modes.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

// torchlayers.transforms.jvp.JvpSpec
struct Pushed : Differentiated {
  using Differentiated::Differentiated;
  bool is_strict() const {
    return field(4).ptr() == Py_True;
  }
};

bool fits(py::handle primal, py::handle tangent) {
  return is_tensor(tangent) && is_differentiable(tensor_of(tangent)) &&
         tensor_of(primal).sym_sizes() == tensor_of(tangent).sym_sizes();
}

py::object dual_of(py::handle primal, py::handle tangent, int64_t level, const Replaced& replaced) {
  if (tangent.is_none()) {
    return wrap_all(primal, level, replaced);
  }
  if (const auto make = replaced["make_dual"]) {
    return make(primal, tangent, py::arg("level") = 0);
  }
  if (!overrides_functions(primal)) {
    return object_of(make_dual(tensor_of(primal), tensor_of(tangent)));
  }
  // Has the primal's class, if its __torch_function__ returns that.
  return imported("torch", "_VF").attr("_make_dual")(primal, tangent, py::arg("level") = 0);
}

// The value and the tangent, unwrapped from the level.
std::pair<py::object, py::object> split(
    const Pushed& given, py::handle dual, size_t i, int64_t level, const Replaced& replaced) {
  if (replaced) {
    const auto unpack = imported("torch._functorch.eager_transforms", "safe_unpack_dual");
    const py::tuple pair = unpack(dual, given.is_strict());
    return {unwrap_all(pair[0], level, replaced), unwrap_all(pair[1], level, replaced)};
  }
  const auto [value, tangent] = split_dual(tensor_of(dual), level);
  if (!tangent.defined() && given.is_strict()) {
    given.refuse("refuse_independent", i);
  }
  if (!tangent.defined()) {
    return {object_of(value), unwrap_all(zeros_like(dual), level, replaced)};
  }
  return {object_of(value), object_of(tangent)};
}

} // namespace

// call_jvp(given, primals, tangents, are_leaves): the output, its tangents and aux. The tangents
// are a tree with the structure of the selected primals, or a list of leaves, which may be None.
py::object call_jvp(PyObject* const* passed) {
  const Pushed given(passed[0]);
  PyObject* args = passed[1];
  static bool has_decompositions = false; // some of torch's tangent formulas
  load_once(has_decompositions, "torch.autograd.forward_ad", "_maybe_load_decompositions");
  const auto places = given.places(PyTuple_GET_SIZE(args), /*may_be_none=*/true);
  Tree primals = Tree::of(picked(args, places));
  Tree tangents = Tree::of(passed[2]);
  const bool are_leaves = passed[3] == Py_True;
  bool fit = (are_leaves || primals.structure == tangents.structure) && !primals.leaves.empty() &&
             primals.all_tensors(is_differentiable);
  for (size_t i = 0; fit && i < primals.leaves.size(); ++i) {
    const auto& tangent = tangents.leaves[i];
    fit = (are_leaves && tangent.is_none()) || fits(primals.leaves[i], tangent);
  }
  if (!fit) {
    given.refuse("refuse_tangents", py::handle(args), places, py::handle(passed[2]), are_leaves);
  }
  const Replaced replaced(Transform::jvp);
  for (size_t i = 0; !replaced && i < primals.leaves.size(); ++i) {
    auto& tangent = tangents.leaves[i];
    if (THPVariable_CheckExact(primals.leaves[i].ptr()) && THPVariable_CheckExact(tangent.ptr())) {
      tangent = object_of(fit_tangent(tensor_of(primals.leaves[i]), tensor_of(tangent)));
    }
  }
  const auto body = [&](int64_t level) -> py::object {
    Leaves duals, out_tangents;
    duals.reserve(primals.leaves.size());
    for (size_t i = 0; i < primals.leaves.size(); ++i) {
      duals.push_back(dual_of(primals.leaves[i], tangents.leaves[i], level, replaced));
    }
    auto [output, aux] = given.split_aux(call(
        given.func(),
        wrapped_around(args, places, primals.structure.with(duals), level, replaced),
        nullptr));
    Tree values = Tree::of(output);
    if (values.leaves.empty() || !values.all_tensors([](const at::Tensor&) { return true; })) {
      given.refuse("refuse_outputs", values.leaves);
    }
    out_tangents.reserve(values.leaves.size());
    for (size_t i = 0; i < values.leaves.size(); ++i) {
      auto [value, tangent] = split(given, values.leaves[i], i, level, replaced);
      values.leaves[i] = std::move(value);
      out_tangents.push_back(std::move(tangent));
    }
    return py::make_tuple(
        values.structure.with(values.leaves),
        values.structure.with(out_tangents),
        unwrap_all(aux, level, replaced));
  };
  return within(std::make_shared<JvpLayer>(), body);
}

} // namespace torchlayers
