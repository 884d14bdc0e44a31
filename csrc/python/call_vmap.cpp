#include <torch/csrc/Exceptions.h>

#include "layers/transforms.h"
#include "layers/vmap.h"
#include "python/calls.h"
#include "python/entry.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

// torchlayers.vmap.Vmap
struct Batching : Given {
  using Given::Given;
  py::handle func() const {
    return field(0);
  }
  py::handle in_dims() const {
    return field(1);
  }
  py::handle out_dims() const {
    return field(2);
  }
  Randomness randomness() const {
    return parse_randomness(field(3));
  }
};

// A tree of which some leaves have a batch dimension, and where.
struct Batch {
  Tree tree;
  std::vector<std::optional<int64_t>> dims;

  // Taken apart by Python: the leaves, their structure, their dimensions.
  static Batch of(const py::tuple& flat) {
    return {
        {flat[0].cast<Leaves>(), Structure(flat[1])},
        flat[2].cast<std::vector<std::optional<int64_t>>>()};
  }

  // The tree, change(tensor, dim) of each that has a dimension.
  template <class Change>
  py::object changed(const Change& change) const {
    Leaves leaves = tree.leaves;
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (dims[i]) {
        leaves[i] = object_of(change(tensor_of(leaves[i]), *dims[i]));
      }
    }
    return tree.structure.with(leaves);
  }
};

// torch.func registers some of torch's batching rules at its first vmap.
void load_batching_rules() {
  static bool loaded = false;
  if (!loaded) {
    imported("torch._functorch.predispatch", "lazy_load_decompositions")();
    loaded = true;
  }
}

struct Samples {
  Batch args;
  c10::SymInt size;
};

// The arguments, where in_dims is an int or has one or none for each of them; nothing where Python
// has to match the two, or to refuse them.
std::optional<Samples> samples_of(PyObject* args, PyObject* in_dims) {
  const Py_ssize_t count = PyTuple_GET_SIZE(args);
  const bool one_for_all = !PyTuple_CheckExact(in_dims);
  if (!one_for_all && PyTuple_GET_SIZE(in_dims) != count) {
    return std::nullopt;
  }
  Batch batch{Tree::tuple(count), {}};
  auto& [tree, dims] = batch;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* in_dim = one_for_all ? in_dims : PyTuple_GET_ITEM(in_dims, i);
    const auto dim = plain_int(in_dim);
    if ((!dim && in_dim != Py_None) || !tree.add(PyTuple_GET_ITEM(args, i))) {
      return std::nullopt;
    }
    dims.resize(tree.leaves.size(), dim);
  }
  std::optional<c10::SymInt> size;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (!dims[i]) {
      continue;
    }
    if (!is_tensor(tree.leaves[i])) {
      return std::nullopt;
    }
    const at::Tensor& tensor = tensor_of(tree.leaves[i]);
    int64_t& dim = *dims[i];
    if (dim < -tensor.dim() || dim >= tensor.dim()) {
      return std::nullopt;
    }
    dim += dim < 0 ? tensor.dim() : 0;
    const c10::SymInt its_size = tensor.sym_size(dim);
    if (size && *size != its_size) {
      return std::nullopt;
    }
    size = its_size;
  }
  return size ? std::optional(Samples{std::move(batch), *size}) : std::nullopt;
}

// The results, where out_dims is an int; nothing where Python has to match or to refuse them.
std::optional<Batch> results_of(py::handle results, py::handle out_dims) {
  const auto dim = plain_int(out_dims);
  if (!dim) {
    return std::nullopt;
  }
  Tree tree = Tree::of(results);
  const auto fits = [&](const at::Tensor& result) {
    return -result.dim() - 1 <= *dim && *dim <= result.dim();
  };
  if (!tree.all_tensors(fits)) {
    return std::nullopt;
  }
  const size_t count = tree.leaves.size();
  return Batch{std::move(tree), std::vector<std::optional<int64_t>>(count, dim)};
}

py::object run(
    const Batching& given, const Samples& samples, PyObject* kwargs, const Replaced& replaced) {
  const auto layer = std::make_shared<VmapLayer>(samples.size, given.randomness());
  const auto batched = [&](int64_t level) -> py::object {
    const Batch& args = samples.args;
    if (const auto create = replaced["_create_batched_inputs"]) {
      return create(args.dims, args.tree.leaves, level, args.tree.structure.spec());
    }
    return args.changed(
        [](const at::Tensor& tensor, int64_t dim) { return add_batch_dim(tensor, dim); });
  };
  return within(layer, [&](int64_t level) -> py::object {
    const py::object results = call(given.func(), batched(level), kwargs);
    if (const auto unwrap = replaced["_unwrap_batched"]) {
      return unwrap(results, given.out_dims(), level, samples.size, given.func());
    }
    auto flat = results_of(results, given.out_dims());
    if (!flat) {
      flat = Batch::of(given.ask("flat_results", results, level));
    }
    return flat->changed([&](const at::Tensor& tensor, int64_t dim) {
      return remove_batch_dim(tensor, level, samples.size, dim);
    });
  });
}

// call_vmap(given, args, kwargs)
PyObject* call_vmap(PyObject*, PyObject* const* passed, Py_ssize_t) {
  HANDLE_TH_ERRORS
  const Batching given(passed[0]);
  const Replaced replaced(Transform::vmap);
  load_batching_rules();
  if (!plain_int(given.out_dims())) {
    given.ask("check_out_dims");
  }
  auto samples = replaced ? std::nullopt : samples_of(passed[1], given.in_dims().ptr());
  if (!samples) {
    const py::tuple flat = given.ask("flat_arguments", py::handle(passed[1]));
    samples = Samples{Batch::of(flat), flat[3].cast<c10::SymInt>()};
  }
  return run(given, *samples, passed[2], replaced).release().ptr();
  END_HANDLE_TH_ERRORS
}

// call_vmap_of_leaves(given, (leaves, spec, dims, batch size), kwargs)
PyObject* call_vmap_of_leaves(PyObject*, PyObject* const* passed, Py_ssize_t) {
  HANDLE_TH_ERRORS
  const auto flat = py::reinterpret_borrow<py::tuple>(passed[1]);
  const Samples samples{Batch::of(flat), flat[3].cast<c10::SymInt>()};
  return run(Batching(passed[0]), samples, passed[2], Replaced(Transform::vmap)).release().ptr();
  END_HANDLE_TH_ERRORS
}

} // namespace

PyMethodDef* vmap_methods() {
  static PyMethodDef methods[] = {
      method<call_vmap>("call_vmap"),
      method<call_vmap_of_leaves>("call_vmap_of_leaves"),
      {nullptr, nullptr, 0, nullptr}};
  return methods;
}

} // namespace torchlayers
