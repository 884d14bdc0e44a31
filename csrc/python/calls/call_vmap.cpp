#include "layers/transforms.h"
#include "layers/vmap/vmap.h"
#include "python/calls/calls.h"
#include "python/entry.h"

#include <functional>

namespace torchlayers {
namespace {

namespace py = pybind11;

// torchlayers.transforms.vmap_dims.VmapSpec
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
  // For keyed randomness: the key, and the position of the first sample in the whole batch.
  const at::Tensor& key() const {
    return tensor_of(field(4));
  }
  int64_t first() const {
    return field(5).cast<int64_t>();
  }
  std::shared_ptr<VmapLayer> layer(const c10::SymInt& batch_size) const {
    return field(4).is_none() ? std::make_shared<VmapLayer>(batch_size, randomness())
                              : std::make_shared<VmapLayer>(batch_size, key(), first());
  }
};

// A tree, with the batch dimensions of its leaves.
struct Batch {
  Tree tree;
  std::vector<std::optional<int64_t>> dims;

  // From a tree flattened in Python: the leaves, their structure, their dimensions.
  static Batch of(const py::tuple& flat) {
    return {
        {flat[0].cast<Leaves>(), Structure(flat[1])},
        flat[2].cast<std::vector<std::optional<int64_t>>>()};
  }

  // The tree, with change(tensor, dim) for each leaf that has a batch dimension.
  template <class Change>
  py::object put_together(const Change& change) {
    for (size_t i = 0; i < tree.leaves.size(); ++i) {
      if (dims[i]) {
        tree.leaves[i] = object_of(change(tensor_of(tree.leaves[i]), *dims[i]));
      }
    }
    return tree.structure.with(tree.leaves);
  }
};

struct Samples {
  Batch args;
  c10::SymInt size;
};

// Flattens the arguments if in_dims is an int, or an int or None for each of them. Returns false if
// Python has to match the two, or to raise an error.
bool take_apart(PyObject* args, PyObject* in_dims, Samples& into) {
  const Py_ssize_t count = PyTuple_GET_SIZE(args);
  const bool one_for_all = !PyTuple_CheckExact(in_dims);
  if (!one_for_all && PyTuple_GET_SIZE(in_dims) != count) {
    return false;
  }
  auto& [tree, dims] = into.args;
  tree = Tree::tuple(count);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* in_dim = one_for_all ? in_dims : PyTuple_GET_ITEM(in_dims, i);
    const auto dim = plain_int(in_dim);
    if ((!dim && in_dim != Py_None) || !tree.add(PyTuple_GET_ITEM(args, i))) {
      return false;
    }
    dims.resize(tree.leaves.size(), dim);
  }
  bool any = false;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (!dims[i]) {
      continue;
    }
    if (!is_tensor(tree.leaves[i])) {
      return false;
    }
    const at::Tensor& tensor = tensor_of(tree.leaves[i]);
    int64_t& dim = *dims[i];
    if (dim < -tensor.dim() || dim >= tensor.dim()) {
      return false;
    }
    dim += dim < 0 ? tensor.dim() : 0;
    c10::SymInt size = tensor.sym_size(dim);
    if (any && into.size != size) {
      return false;
    }
    into.size = std::move(size);
    any = true;
  }
  return any;
}

// Flattens the results if out_dims is an int; returns nothing if Python has to match them or to
// raise an error.
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
    const Batching& given, Samples& samples, PyObject* kwargs, const Replaced& replaced) {
  const auto layer = given.layer(samples.size);
  const auto batched = [&](int64_t level) -> py::object {
    Batch& args = samples.args;
    if (const auto create = replaced["_create_batched_inputs"]) {
      return create(args.dims, args.tree.leaves, level, args.tree.structure.spec());
    }
    return args.put_together(
        [](const at::Tensor& tensor, int64_t dim) { return add_batch_dim(tensor, dim); });
  };
  py::object args;
  const auto whose = [&](const at::Tensor& tensor) {
    const py::gil_scoped_acquire gil;
    return given
        .ask(
            "describe_tensor",
            args,
            kwargs != nullptr ? py::handle(kwargs) : py::dict(),
            tensor,
            layer->level())
        .cast<std::string>();
  };
  layer->ask(std::ref(whose));
  return within(layer, [&](int64_t level) -> py::object {
    args = batched(level);
    const py::object results = call(given.func(), args, kwargs);
    if (const auto unwrap = replaced["_unwrap_batched"]) {
      return unwrap(results, given.out_dims(), level, samples.size, given.func());
    }
    auto flat = results_of(results, given.out_dims());
    if (!flat) {
      flat = Batch::of(given.ask("flat_results", results, level));
    }
    return flat->put_together([&](const at::Tensor& tensor, int64_t dim) {
      return remove_batch_dim(tensor, level, samples.size, dim);
    });
  });
}

Samples samples_of(const py::tuple& flat) {
  return {Batch::of(flat), flat[3].cast<c10::SymInt>()};
}

} // namespace

// call_vmap(given, args, kwargs)
py::object call_vmap(PyObject* const* passed) {
  const Batching given(passed[0]);
  const Replaced replaced(Transform::vmap);
  static bool has_batching_rules = false; // some of torch's, which torch.func registers
  load_once(has_batching_rules, "torch._functorch.predispatch", "lazy_load_decompositions");
  if (!plain_int(given.out_dims())) {
    given.ask("check_out_dims");
  }
  Samples samples;
  if (replaced || !take_apart(passed[1], given.in_dims().ptr(), samples)) {
    samples = samples_of(given.ask("flat_arguments", py::handle(passed[1])));
  }
  return run(given, samples, passed[2], replaced);
}

// call_vmap_of_leaves(given, (leaves, spec, dims, batch size), kwargs)
py::object call_vmap_of_leaves(PyObject* const* passed) {
  Samples samples = samples_of(py::reinterpret_borrow<py::tuple>(passed[1]));
  return run(Batching(passed[0]), samples, passed[2], Replaced(Transform::vmap));
}

} // namespace torchlayers
