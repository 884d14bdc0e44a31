#include "python_calls.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "python_entry.h"
#include "transforms.h"
#include "wrapper.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

using Tensors = std::vector<at::Tensor>;

// A subclass has methods of its own, which the way in Python calls.
bool is_plain(PyObject* object) {
  return THPVariable_CheckExact(object);
}

const at::Tensor& tensor(PyObject* object) {
  return THPVariable_Unpack(object);
}

py::object to_python(const at::Tensor& tensor) {
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
}

// The members, or nothing where one is not a plain tensor.
std::optional<Tensors> plain_tensors(py::handle tuple) {
  if (!PyTuple_CheckExact(tuple.ptr()) || PyTuple_GET_SIZE(tuple.ptr()) == 0) {
    return std::nullopt;
  }
  Tensors tensors;
  tensors.reserve(static_cast<size_t>(PyTuple_GET_SIZE(tuple.ptr())));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple.ptr()); ++i) {
    PyObject* member = PyTuple_GET_ITEM(tuple.ptr(), i);
    if (!is_plain(member)) {
      return std::nullopt;
    }
    tensors.push_back(tensor(member));
  }
  return tensors;
}

// An int, and no bool; or nothing.
std::optional<int64_t> plain_int(PyObject* object) {
  if (!PyLong_CheckExact(object)) {
    return std::nullopt;
  }
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0 ? std::optional(value) : std::nullopt;
}

bool is_differentiable(const at::Tensor& tensor) {
  return tensor.is_floating_point() || tensor.is_complex();
}

py::object call(PyObject* func, const py::tuple& args, PyObject* kwargs = nullptr) {
  auto result = py::reinterpret_steal<py::object>(PyObject_Call(func, args.ptr(), kwargs));
  if (!result) {
    throw py::error_already_set();
  }
  return result;
}

py::tuple to_tuple(const Tensors& tensors) {
  py::tuple tuple(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), THPVariable_Wrap(tensors[i]));
  }
  return tuple;
}

// A way around what a mode of the user's would see of torch's functions is no way to take.
bool any_mode() {
  return at::impl::torch_function_mode_enabled();
}

PyObject* not_plain() {
  Py_RETURN_NOTIMPLEMENTED;
}

// torch.func registers some of torch's batching rules at its first vmap.
void load_batching_rules() {
  static bool loaded = false;
  if (!loaded) {
    py::module_::import("torch._functorch.predispatch").attr("lazy_load_decompositions")();
    loaded = true;
  }
}

// vmap's arguments: each with its batch dimension, counted from the front, or none.
struct Batch {
  Tensors args;
  std::vector<std::optional<int64_t>> dims;
  std::optional<c10::SymInt> size;

  static std::optional<Batch> of(PyObject* args, PyObject* in_dims) {
    auto tensors = plain_tensors(args);
    const bool one_for_all = !PyTuple_CheckExact(in_dims);
    if (!tensors || (!one_for_all && PyTuple_GET_SIZE(in_dims) != PyTuple_GET_SIZE(args))) {
      return std::nullopt;
    }
    Batch batch{std::move(*tensors), {}, std::nullopt};
    batch.dims.reserve(batch.args.size());
    for (size_t i = 0; i < batch.args.size(); ++i) {
      PyObject* dim = one_for_all ? in_dims : PyTuple_GET_ITEM(in_dims, static_cast<Py_ssize_t>(i));
      if (!batch.add(batch.args[i], dim)) {
        return std::nullopt;
      }
    }
    return batch.size ? std::optional(std::move(batch)) : std::nullopt;
  }

 private:
  bool add(const at::Tensor& arg, PyObject* in_dim) {
    if (in_dim == Py_None) {
      dims.emplace_back();
      return true;
    }
    const auto dim = plain_int(in_dim);
    if (!dim || *dim < -arg.dim() || *dim >= arg.dim()) {
      return false;
    }
    dims.emplace_back(*dim < 0 ? *dim + arg.dim() : *dim);
    const c10::SymInt its_size = arg.sym_size(*dims.back());
    if (!size) {
      size = its_size;
    }
    return *size == its_size;
  }
};

// A tensor, or a tuple of tensors, without its batch dimension; nothing for other results, and
// where out_dim is out of range.
std::optional<py::object> without_batch(
    const py::object& result, int64_t level, const c10::SymInt& batch_size, int64_t out_dim) {
  const auto one = [&](PyObject* output) -> std::optional<py::object> {
    if (!is_plain(output)) {
      return std::nullopt;
    }
    const int64_t dims = tensor(output).dim() + 1;
    if (out_dim < -dims || out_dim >= dims) {
      return std::nullopt;
    }
    return to_python(remove_batch_dim(tensor(output), level, batch_size, out_dim));
  };
  if (!PyTuple_CheckExact(result.ptr())) {
    return one(result.ptr());
  }
  py::tuple outputs(PyTuple_GET_SIZE(result.ptr()));
  for (size_t i = 0; i < outputs.size(); ++i) {
    auto output = one(PyTuple_GET_ITEM(result.ptr(), static_cast<Py_ssize_t>(i)));
    if (!output) {
      return std::nullopt;
    }
    outputs[i] = std::move(*output);
  }
  return outputs;
}

// call_vmap(func, args, kwargs, in_dims, out_dims, randomness, unbatch): the result of
// vmap(func, in_dims, out_dims, randomness)(*args, **kwargs).
PyObject* call_vmap(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  PyObject *func = given[0], *kwargs = given[2], *out_dims = given[4], *unbatch = given[6];
  const auto out_dim = plain_int(out_dims);
  if (!out_dim || any_mode()) {
    return not_plain();
  }
  auto batch = Batch::of(given[1], given[3]);
  if (!batch) {
    return not_plain();
  }
  load_batching_rules();
  const auto entry =
      std::make_shared<VmapEntry>(*batch->size, parse_randomness(py::cast<std::string>(given[5])));
  const auto body = [&](int64_t level) -> py::object {
    for (size_t i = 0; i < batch->args.size(); ++i) {
      if (batch->dims[i]) {
        batch->args[i] = add_batch_dim(batch->args[i], *batch->dims[i]);
      }
    }
    const py::object result = call(func, to_tuple(batch->args), kwargs);
    if (auto unbatched = without_batch(result, level, *batch->size, *out_dim)) {
      return *unbatched;
    }
    return py::reinterpret_borrow<py::object>(unbatch)(
        py::handle(func), result, py::handle(out_dims), level, *batch->size);
  };
  return within(*entry, body).release().ptr();
  END_HANDLE_TH_ERRORS
}

// Which of `count` arguments, or nothing where argnums has to be refused.
std::optional<std::vector<size_t>> places_of(PyObject* argnums, size_t count) {
  std::vector<size_t> places;
  const auto add = [&](PyObject* argnum) {
    const auto given = plain_int(argnum);
    const auto size = static_cast<int64_t>(count);
    if (!given || *given < -size || *given >= size) {
      return false;
    }
    const auto place = static_cast<size_t>(*given < 0 ? *given + size : *given);
    const bool is_new = std::find(places.begin(), places.end(), place) == places.end();
    places.push_back(place);
    return is_new;
  };
  if (!PyTuple_CheckExact(argnums)) {
    return add(argnums) ? std::optional(std::move(places)) : std::nullopt;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(argnums); ++i) {
    if (!add(PyTuple_GET_ITEM(argnums, i))) {
      return std::nullopt;
    }
  }
  return places.empty() ? std::nullopt : std::optional(std::move(places));
}

// The gradients at the layer's level, as _gradients in torchlayers/grad.py computes them;
// nothing where the value is not what it should be, or depends on none of the arguments.
std::optional<Tensors> gradients_of(PyObject* value, const Tensors& tracked) {
  if (!is_plain(value) || any_mode()) {
    return std::nullopt;
  }
  const at::Tensor& output = tensor(value);
  if (output.dim() != 0 || output.is_complex() || !output.requires_grad()) {
    return std::nullopt;
  }
  Tensors gradients;
  {
    py::gil_scoped_release no_gil;
    gradients = pull_back(
        {output},
        tracked,
        {},
        /*retain_graph=*/false,
        /*create_graph=*/true,
        /*in_layer=*/true);
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) {
      gradients[i] = at::zeros_like(tracked[i]);
    }
  }
  return gradients;
}

// call_grad(func, args, argnums, gradients): grad_and_value(func, argnums)(*args).
PyObject* call_grad(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  PyObject *func = given[0], *argnums = given[2], *otherwise = given[3];
  auto args = any_mode() ? std::nullopt : plain_tensors(given[1]);
  const auto places = args ? places_of(argnums, args->size()) : std::nullopt;
  if (!places || !std::all_of(places->begin(), places->end(), [&](size_t place) {
        return is_differentiable((*args)[place]);
      })) {
    return not_plain();
  }
  const auto entry = std::make_shared<GradEntry>();
  const auto body = [&](int64_t level) -> py::object {
    Tensors tracked;
    for (size_t place : *places) {
      (*args)[place] = wrap_argument((*args)[place], /*tracked=*/true);
      tracked.push_back((*args)[place]);
    }
    for (size_t i = 0; i < args->size(); ++i) {
      if (std::find(places->begin(), places->end(), i) == places->end()) {
        (*args)[i] = wrap_argument((*args)[i], /*tracked=*/false);
      }
    }
    const py::object value = call(func, to_tuple(*args));
    auto gradients = gradients_of(value.ptr(), tracked);
    if (!gradients) {
      const auto general = py::reinterpret_borrow<py::object>(otherwise);
      gradients = general(py::handle(func), value, py::cast(tracked)).cast<Tensors>();
    }
    for (at::Tensor& gradient : *gradients) {
      gradient = unwrap(gradient, level);
    }
    return py::make_tuple(
        PyTuple_CheckExact(argnums) ? py::object(to_tuple(*gradients)) : to_python((*gradients)[0]),
        to_python(unwrap(tensor(value.ptr()), level)));
  };
  return within(*entry, body).release().ptr();
  END_HANDLE_TH_ERRORS
}

// call_jvp(func, primals, tangents, split): jvp(func, primals, tangents).
PyObject* call_jvp(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  PyObject *func = given[0], *split = given[3];
  auto primals = any_mode() ? std::nullopt : plain_tensors(given[1]);
  const auto tangents = primals ? plain_tensors(given[2]) : std::nullopt;
  const auto fits = [](const at::Tensor& primal, const at::Tensor& tangent) {
    return is_differentiable(primal) && is_differentiable(tangent) &&
           primal.sym_sizes() == tangent.sym_sizes();
  };
  if (!tangents ||
      !std::equal(primals->begin(), primals->end(), tangents->begin(), tangents->end(), fits)) {
    return not_plain();
  }
  const auto entry = std::make_shared<JvpEntry>();
  const auto body = [&](int64_t level) -> py::object {
    for (size_t i = 0; i < primals->size(); ++i) {
      (*primals)[i] = make_dual((*primals)[i], (*tangents)[i]);
    }
    const py::object output = call(func, to_tuple(*primals));
    if (!is_plain(output.ptr())) {
      return py::reinterpret_borrow<py::object>(split)(output, level);
    }
    const at::Tensor& dual = tensor(output.ptr());
    auto [primal, tangent] = split_dual(dual, level);
    if (!tangent.defined()) {
      tangent = unwrap(at::zeros_like(dual), level);
    }
    return py::make_tuple(to_python(primal), to_python(tangent));
  };
  return within(*entry, body).release().ptr();
  END_HANDLE_TH_ERRORS
}

template <PyObject* (*Call)(PyObject*, PyObject* const*, Py_ssize_t)>
PyMethodDef method(const char* name) {
  // pybind's way of calling takes longer than all else here. What is passed is not counted:
  // each has one caller.
  return {
      name,
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Call)),
      METH_FASTCALL,
      nullptr};
}

} // namespace

void bind_calls(py::module_& m) {
  static PyMethodDef methods[] = {
      method<call_vmap>("call_vmap"),
      method<call_grad>("call_grad"),
      method<call_jvp>("call_jvp"),
      {nullptr, nullptr, 0, nullptr}};
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) {
    throw py::error_already_set();
  }
}

} // namespace torchlayers
