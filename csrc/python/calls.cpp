#include "python/calls.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "layers/grad.h"
#include "layers/jvp.h"
#include "layers/transforms.h"
#include "python/entry.h"
#include "python/nest.h"
#include "python/steps.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

// One of a call's positional arguments.
using Arguments = std::vector<Nest>;

// Nothing where there are none, or one of them is another thing than a nest.
std::optional<Arguments> arguments_of(PyObject* args) {
  if (!PyTuple_CheckExact(args) || PyTuple_GET_SIZE(args) == 0) {
    return std::nullopt;
  }
  Arguments arguments;
  arguments.reserve(static_cast<size_t>(PyTuple_GET_SIZE(args)));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
    auto nest = Nest::of(PyTuple_GET_ITEM(args, i));
    if (!nest) {
      return std::nullopt;
    }
    arguments.push_back(std::move(*nest));
  }
  return arguments;
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

// A mode sees torch's functions that the general way calls.
bool any_mode() {
  return at::impl::torch_function_mode_enabled();
}

// Whether a call may do all steps itself.
bool may_be_one_step(Transform transform) {
  return !any_mode() && !has_replaced_steps(transform);
}

PyObject* not_plain() {
  Py_RETURN_NOTIMPLEMENTED;
}

py::object call(PyObject* func, const py::tuple& args, PyObject* kwargs = nullptr) {
  auto result = py::reinterpret_steal<py::object>(PyObject_Call(func, args.ptr(), kwargs));
  if (!result) {
    throw py::error_already_set();
  }
  return result;
}

template <class Change>
Tensors changed(const Tensors& tensors, const Change& change) {
  Tensors results;
  results.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    results.push_back(change(tensor));
  }
  return results;
}

// The arguments, the tensors of the i-th being change(i).
template <class Change>
py::tuple rebuilt(const Arguments& arguments, const Change& change) {
  py::tuple args(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    args[i] = arguments[i].with(change(i));
  }
  return args;
}

// torch.func registers some of torch's batching rules at its first vmap.
void load_batching_rules() {
  static bool loaded = false;
  if (!loaded) {
    py::module_::import("torch._functorch.predispatch").attr("lazy_load_decompositions")();
    loaded = true;
  }
}

// vmap's arguments: for each the batch dimension of its tensors, or none.
struct Batch {
  Arguments args;
  std::vector<std::optional<int64_t>> in_dims;
  std::optional<c10::SymInt> size;

  static std::optional<Batch> of(PyObject* args, PyObject* in_dims) {
    auto arguments = arguments_of(args);
    const bool one_for_all = !PyTuple_CheckExact(in_dims);
    if (!arguments || (!one_for_all && PyTuple_GET_SIZE(in_dims) != PyTuple_GET_SIZE(args))) {
      return std::nullopt;
    }
    Batch batch{std::move(*arguments), {}, std::nullopt};
    batch.in_dims.reserve(batch.args.size());
    for (size_t i = 0; i < batch.args.size(); ++i) {
      PyObject* in_dim =
          one_for_all ? in_dims : PyTuple_GET_ITEM(in_dims, static_cast<Py_ssize_t>(i));
      if (!batch.add(batch.args[i], in_dim)) {
        return std::nullopt;
      }
    }
    return batch.size ? std::optional(std::move(batch)) : std::nullopt;
  }

  Tensors batched(size_t i) const {
    const auto& in_dim = in_dims[i];
    return in_dim
               ? changed(
                     args[i].tensors(),
                     [&](const at::Tensor& tensor) {
                       return add_batch_dim(tensor, *in_dim < 0 ? *in_dim + tensor.dim() : *in_dim);
                     })
               : args[i].tensors();
  }

 private:
  bool add(const Nest& nest, PyObject* in_dim) {
    in_dims.push_back(plain_int(in_dim));
    if (!in_dims.back()) {
      return in_dim == Py_None;
    }
    const int64_t dim = *in_dims.back();
    const auto fits = [&](const at::Tensor& tensor) {
      if (dim < -tensor.dim() || dim >= tensor.dim()) {
        return false;
      }
      const c10::SymInt its_size = tensor.sym_size(dim);
      if (!size) {
        size = its_size;
      }
      return *size == its_size;
    };
    return nest.has_only_tensors() &&
           std::all_of(nest.tensors().begin(), nest.tensors().end(), fits);
  }
};

// vmap's result without its batch dimension; nothing where it is no nest of tensors, or out_dim
// is out of range.
std::optional<py::object> without_batch(
    const py::object& result, int64_t level, const c10::SymInt& batch_size, int64_t out_dim) {
  const auto outputs = Nest::of(result);
  if (!outputs || !outputs->has_only_tensors() ||
      !std::all_of(
          outputs->tensors().begin(), outputs->tensors().end(), [&](const at::Tensor& output) {
            const int64_t dims = output.dim() + 1;
            return -dims <= out_dim && out_dim < dims;
          })) {
    return std::nullopt;
  }
  return outputs->with(changed(outputs->tensors(), [&](const at::Tensor& output) {
    return remove_batch_dim(output, level, batch_size, out_dim);
  }));
}

// call_vmap(func, args, kwargs, in_dims, out_dims, randomness, unbatch): the result of
// vmap(func, in_dims, out_dims, randomness)(*args, **kwargs).
PyObject* call_vmap(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  PyObject *func = given[0], *kwargs = given[2], *out_dims = given[4], *unbatch = given[6];
  const auto out_dim = plain_int(out_dims);
  const auto batch =
      out_dim && may_be_one_step(Transform::vmap) ? Batch::of(given[1], given[3]) : std::nullopt;
  if (!batch) {
    return not_plain();
  }
  load_batching_rules();
  const auto entry = std::make_shared<Entry>(
      std::make_shared<VmapLayer>(*batch->size, parse_randomness(py::handle(given[5]))));
  const auto body = [&](int64_t level) -> py::object {
    const py::tuple args = rebuilt(batch->args, [&](size_t i) { return batch->batched(i); });
    const py::object result = call(func, args, kwargs);
    if (auto unbatched = without_batch(result, level, *batch->size, *out_dim)) {
      return *unbatched;
    }
    return py::reinterpret_borrow<py::object>(unbatch)(
        py::handle(func), result, py::handle(out_dims), level, *batch->size);
  };
  return within(*entry, body).release().ptr();
  END_HANDLE_TH_ERRORS
}

bool is_differentiable(const at::Tensor& tensor) {
  return tensor.is_floating_point() || tensor.is_complex();
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
std::optional<Tensors> gradients_of(const py::object& value, const Tensors& tracked) {
  if (!is_plain(value) || any_mode()) {
    return std::nullopt;
  }
  const at::Tensor& output = THPVariable_Unpack(value.ptr());
  if (output.dim() != 0 || output.is_complex() || !output.requires_grad()) {
    return std::nullopt;
  }
  Tensors gradients;
  {
    py::gil_scoped_release no_gil;
    gradients =
        vjp({output},
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

// grad's arguments: some of them are differentiated by.
struct Chosen {
  Arguments args;
  std::vector<size_t> places;

  static std::optional<Chosen> of(PyObject* args, PyObject* argnums) {
    auto arguments = arguments_of(args);
    auto places = arguments ? places_of(argnums, arguments->size()) : std::nullopt;
    if (!places) {
      return std::nullopt;
    }
    for (size_t place : *places) {
      const Nest& nest = (*arguments)[place];
      if (nest.tensors().empty() || !nest.has_only_tensors() ||
          !std::all_of(nest.tensors().begin(), nest.tensors().end(), is_differentiable)) {
        return std::nullopt;
      }
    }
    return Chosen{std::move(*arguments), std::move(*places)};
  }

  // Each argument's tensors at the layer's level.
  std::vector<Tensors> wrapped() const {
    std::vector<Tensors> wrapped;
    for (size_t i = 0; i < args.size(); ++i) {
      const bool tracked = std::find(places.begin(), places.end(), i) != places.end();
      wrapped.push_back(changed(args[i].tensors(), [&](const at::Tensor& tensor) {
        return wrap_argument(tensor, tracked);
      }));
    }
    return wrapped;
  }
};

// call_grad(func, args, argnums, gradients): grad_and_value(func, argnums)(*args).
PyObject* call_grad(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  PyObject *func = given[0], *argnums = given[2], *otherwise = given[3];
  const auto chosen =
      may_be_one_step(Transform::grad) ? Chosen::of(given[1], argnums) : std::nullopt;
  if (!chosen) {
    return not_plain();
  }
  const auto entry = std::make_shared<Entry>(std::make_shared<GradLayer>());
  const auto body = [&](int64_t level) -> py::object {
    const auto wrapped = chosen->wrapped();
    Tensors tracked;
    for (size_t place : chosen->places) {
      tracked.insert(tracked.end(), wrapped[place].begin(), wrapped[place].end());
    }
    const py::tuple args = rebuilt(chosen->args, [&](size_t i) { return wrapped[i]; });
    Arguments shapes; // of the gradients; the function may change its own
    for (size_t place : chosen->places) {
      shapes.push_back(chosen->args[place].copy());
    }
    const py::object value = call(func, args);
    auto gradients = gradients_of(value, tracked);
    if (!gradients) {
      const auto general = py::reinterpret_borrow<py::object>(otherwise);
      gradients = general(py::handle(func), value, py::cast(tracked)).cast<Tensors>();
    }
    auto next = gradients->begin();
    const py::tuple results = rebuilt(shapes, [&](size_t i) {
      const auto begin =
          std::exchange(next, next + static_cast<std::ptrdiff_t>(shapes[i].tensors().size()));
      return changed(Tensors(begin, next), [&](const at::Tensor& gradient) {
        return unwrap(gradient, level);
      });
    });
    return py::make_tuple(
        PyTuple_CheckExact(argnums) ? py::object(results) : py::object(results[0]),
        unwrap(THPVariable_Unpack(value.ptr()), level));
  };
  return within(*entry, body).release().ptr();
  END_HANDLE_TH_ERRORS
}

bool have_tangents(const Nest& primals, const Nest& tangents) {
  const auto fits = [](const at::Tensor& primal, const at::Tensor& tangent) {
    return is_differentiable(primal) && is_differentiable(tangent) &&
           primal.sym_sizes() == tangent.sym_sizes();
  };
  return !primals.tensors().empty() && primals.has_only_tensors() &&
         primals.is_shaped_as(tangents) &&
         std::equal(
             primals.tensors().begin(), primals.tensors().end(), tangents.tensors().begin(), fits);
}

// What jvp's function returned, as values and as tangents; nothing where it is no nest of tensors.
std::optional<py::object> split_all(const py::object& result, int64_t level) {
  const auto duals = Nest::of(result);
  if (!duals || !duals->has_only_tensors() || duals->tensors().empty()) {
    return std::nullopt;
  }
  Tensors values, tangents;
  for (const at::Tensor& dual : duals->tensors()) {
    auto [value, tangent] = split_dual(dual, level);
    values.push_back(std::move(value));
    tangents.push_back(tangent.defined() ? tangent : unwrap(at::zeros_like(dual), level));
  }
  return py::make_tuple(duals->with(values), duals->with(tangents));
}

// call_jvp(func, primals, tangents, split): jvp(func, primals, tangents).
PyObject* call_jvp(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  PyObject *func = given[0], *split = given[3];
  const bool may_be = PyTuple_CheckExact(given[1]) && may_be_one_step(Transform::jvp);
  const auto primals = may_be ? Nest::of(given[1]) : std::nullopt;
  const auto tangents = primals ? Nest::of(given[2]) : std::nullopt;
  if (!tangents || !have_tangents(*primals, *tangents)) {
    return not_plain();
  }
  auto given_tangent = tangents->tensors().begin();
  const Tensors fitting = changed(primals->tensors(), [&](const at::Tensor& primal) {
    return fit_tangent(primal, *given_tangent++);
  });
  const auto entry = std::make_shared<Entry>(std::make_shared<JvpLayer>());
  const auto body = [&](int64_t level) -> py::object {
    auto tangent = fitting.begin();
    const Tensors duals = changed(primals->tensors(), [&](const at::Tensor& primal) {
      return make_dual(primal, *tangent++);
    });
    const py::object result = call(func, primals->with(duals));
    if (auto both = split_all(result, level)) {
      return *both;
    }
    return py::reinterpret_borrow<py::object>(split)(result, level);
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
