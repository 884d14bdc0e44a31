#include "python/hooks/tensor_hooks.h"

#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_hook.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "core/patches.h"
#include "core/stack.h"
#include "layers/module_hook.h"
#include "python/bindings.h"
#include "python/function_modes.h"
#include "python/modules/module_swap_dicts.h"
#include "python/tree.h"
#include "values/functional.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

namespace py = pybind11;
using modules::interned;

py::object owned(PyObject* made) {
  if (made == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(made);
}

void set(const py::handle& object, PyObject* name, const py::handle& value) {
  if (PyObject_SetAttr(object.ptr(), name, value.ptr()) != 0) {
    throw py::error_already_set();
  }
}

// Applies `change` to a gradient, or to each of a tuple of them.
template <class Change>
py::object changed(const py::handle& gradients, const Change& change) {
  const auto one = [&](const py::handle& gradient, size_t i) -> py::object {
    return THPVariable_Check(gradient.ptr())
               ? py::cast(change(THPVariable_Unpack(gradient.ptr()), i))
               : py::reinterpret_borrow<py::object>(gradient);
  };
  if (!py::isinstance<py::tuple>(gradients)) {
    return one(gradients, 0);
  }
  py::list results;
  for (const py::handle gradient : gradients) {
    results.append(one(gradient, results.size()));
  }
  return py::tuple(results);
}

// Creates handles of hooks as torch's constructor does, which is in Python.
class Handles {
 public:
  static Handles& instance() {
    static auto* handles = new Handles();
    return *handles;
  }

  // Adds a hook to those of a tensor, as the last.
  py::object put(PyObject* hook, const py::handle& among) {
    auto* type = reinterpret_cast<PyTypeObject*>(type_.ptr());
    py::object handle;
    py::object id;
    if (are_known_) {
      handle = owned(type->tp_alloc(type, 0));
      id = owned(PyLong_FromLongLong(--last_id_)); // torch counts from 0 upwards
      fill(handle, hooks_, owned(PyWeakref_NewRef(among.ptr(), /*callback=*/nullptr)));
      fill(handle, id_, id);
      fill(handle, extra_, no_extra_);
    } else {
      handle = type_(among);
      id = handle.attr("id");
    }
    if (PyObject_SetItem(among.ptr(), id.ptr(), hook) != 0) {
      throw py::error_already_set();
    }
    return handle;
  }

  py::object no_hooks() const {
    return owned(PyObject_CallNoArgs(dict_.ptr()));
  }

 private:
  Handles()
      : dict_(imported("collections", "OrderedDict")),
        type_(imported("torchlayers.modules.backward_hooks", "Handle")),
        hooks_(offset_of("hooks_dict_ref")),
        id_(offset_of("id")),
        extra_(offset_of("extra_dict_ref")) {
    // A later version of torch may have more fields.
    const py::object sample = type_(no_hooks());
    are_known_ = py::len(sample.attr("__dict__")) == 0 &&
                 py::object(sample.attr("extra_dict_ref")).equal(no_extra_);
  }

  Py_ssize_t offset_of(const char* slot) const {
    const py::object descriptor = type_.attr(slot);
    return reinterpret_cast<PyMemberDescrObject*>(descriptor.ptr())->d_member->offset;
  }

  // Sets a field of a new handle, which is still empty.
  static void fill(const py::object& handle, Py_ssize_t offset, py::object value) {
    *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(handle.ptr()) + offset) =
        value.release().ptr();
  }

  py::object dict_;
  py::object type_;
  Py_ssize_t hooks_, id_, extra_;
  bool are_known_ = false;
  int64_t last_id_ = 0;
  py::tuple no_extra_;
};

// The user's hook, in the form in which the level that tracks the tensors calls it.
py::object placed(py::object hook, std::vector<Hold> holds) {
  HookPlace place(std::move(holds));
  return place.is_under_vmap() ? py::cast(PlacedHook{std::move(hook), std::move(place)})
                               : std::move(hook);
}

[[noreturn]] void raise_stands_for_another(const char* method) {
  raise(
      "x.{} was called on a tensor that the function inside vmap created, and to which it has "
      "written per-sample values: earlier reads of it would bypass the hook. Register it on y = "
      "x.clone(), and use y from there on.",
      method);
}

// Registers a hook as torch does for a non-leaf tensor, whose node gets a PyFunctionTensorPreHook
// with the tensor's hooks. torch only creates one when that attribute is set, so it is set and the
// object moved to the node.
py::object hooked(const at::Tensor& tensor, PyObject* self, PyObject* hook) {
  static PyObject* const backward_hooks = interned("_backward_hooks");
  Handles& handles = Handles::instance();
  py::object among =
      py::reinterpret_borrow<py::object>(reinterpret_cast<THPVariable*>(self)->backward_hooks);
  if (!among) {
    among = handles.no_hooks();
    set(self, backward_hooks, among);
    auto of_node = std::move(torch::autograd::impl::hooks(tensor).back());
    static_cast<torch::autograd::PyFunctionTensorPreHook&>(*of_node).value_idx = tensor.output_nr();
    tensor.grad_fn()->add_tensor_pre_hook(std::move(of_node));
    set(self, backward_hooks, among); // once more, for the tensor
  }
  return handles.put(hook, among);
}

bool is_for_us(const py::handle& self) {
  return THPVariable_CheckExact(self.ptr()) && any_layer() && !any_enabled_function_mode();
}

// x.register_hook(hook): torch's raises an error if the tensor does not require grad itself, even
// if an outer level tracks the values inside. None where torch's method has to handle it.
py::object register_hook(const py::handle& self, const py::object& hook) {
  if (!is_for_us(self)) {
    return py::none();
  }
  const at::Tensor& tensor = THPVariable_Unpack(self.ptr());
  if (tensor.requires_grad() && functional_of(tensor) == nullptr) {
    return tensor.grad_fn() != nullptr ? hooked(tensor, self.ptr(), hook.ptr()) : py::none();
  }
  auto [value, hold] = recorded(tensor);
  if (!value.defined()) {
    return py::none();
  }
  if (hold.stands_for_another) {
    raise_stands_for_another("register_hook(...)");
  }
  const py::object there = py::cast(value);
  const py::object to_call = placed(hook, {std::move(hold)});
  return value.grad_fn() != nullptr ? hooked(value, there.ptr(), to_call.ptr())
                                    : there.attr("register_hook")(to_call);
}

// For what needs a tensor that requires grad itself, and which torch handles otherwise.
void refuse_inside(const py::handle& self, const std::string& call, const std::string& instead) {
  if (!is_for_us(self)) {
    return;
  }
  const at::Tensor& tensor = THPVariable_Unpack(self.ptr());
  const bool is_inside = !tensor.requires_grad() || functional_of(tensor) != nullptr;
  if (is_inside && recorded(tensor).first.defined()) {
    raise(
        "{} was called on a tensor that {} does not differentiate with respect to: an outer "
        "transform differentiates a value inside it. {}",
        call,
        top_layer() != nullptr ? top_layer()->name() : "the innermost transform",
        instead);
  }
}

// For each tensor the node that records its value, and a function that registers a hook on that
// value: a hook that may use the gradients of all the tensors. (None, None) for one that no level
// records. None if torch's functions do for all of them.
py::object recorded_for_hooks(const std::vector<py::object>& tensors) {
  const auto is_torchs = [](const py::object& self) {
    return !is_for_us(self) || (THPVariable_Unpack(self.ptr()).requires_grad() &&
                                functional_of(THPVariable_Unpack(self.ptr())) == nullptr);
  };
  if (std::ranges::all_of(tensors, is_torchs)) {
    return py::none();
  }
  std::vector<at::Tensor> values;
  std::vector<Hold> holds;
  for (const py::object& self : tensors) {
    auto [value, hold] = recorded(THPVariable_Unpack(self.ptr()));
    if (hold.stands_for_another) {
      raise_stands_for_another("register_hook(...)");
    }
    values.push_back(std::move(value));
    holds.push_back(std::move(hold));
  }
  py::list results;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i].defined()) {
      results.append(py::make_tuple(py::none(), py::none()));
      continue;
    }
    std::vector<Hold> first = holds; // a hook's first gradient is held by the first of them
    std::swap(first[0], first[i]);
    const auto register_on = [value = values[i], first = std::move(first)](py::object hook) {
      return py::cast(value).attr("register_hook")(placed(std::move(hook), first));
    };
    const auto node = torch::autograd::impl::gradient_edge(values[i]).function;
    results.append(
        py::make_tuple(
            owned(torch::autograd::functionToPyObject(node)), py::cpp_function(register_on)));
  }
  return results;
}

// (tensors, the node's tensor, a function that places a hook), or None if none of them is tracked.
py::object behind_node_of_hooks(const std::vector<at::Tensor>& tensors) {
  BehindOneNode behind = behind_one_node(tensors);
  if (!behind.recorded.defined()) {
    return py::none();
  }
  const auto place = [holds = std::move(behind.holds)](py::object hook) {
    return placed(std::move(hook), holds);
  };
  return py::make_tuple(behind.tensors, behind.recorded, py::cpp_function(place));
}

} // namespace

py::object PlacedHook::operator()(const py::args& given) const {
  const auto alive = [](const at::Tensor& gradient, size_t) {
    return without_dead_wrappers(gradient);
  };
  // Finished levels are active again inside, so wrappers of theirs would be taken for live ones.
  std::vector<py::object> gradients;
  for (const py::handle each : given) {
    gradients.push_back(changed(each, alive));
  }
  py::object made;
  {
    const Patched patched;
    const HookPlace::Inside inside(place);
    py::tuple shown(gradients.size());
    for (size_t i = 0; i < gradients.size(); ++i) {
      shown[i] = changed(gradients[i], [&](const at::Tensor& gradient, size_t at) {
        return inside.shown(gradient, at);
      });
    }
    made = changed(hook(*shown), [&](const at::Tensor& gradient, size_t at) {
      return inside.taken(gradient, at);
    });
  }
  return changed(made, alive);
}

void bind_tensor_hooks(py::module_& m) {
  py::class_<PlacedHook>(
      m, "PlacedHook", "A user's hook, called inside the vmaps in which it was registered.")
      .def("__call__", torch::wrap_pybind_function(&PlacedHook::operator()));
  m.def("behind_node_of_hooks", torch::wrap_pybind_function(&behind_node_of_hooks));
  m.def("recorded_for_hooks", torch::wrap_pybind_function(&recorded_for_hooks));
  m.def("register_hook", torch::wrap_pybind_function(&register_hook));
  m.def("refuse_inside", torch::wrap_pybind_function(&refuse_inside));
}

} // namespace torchlayers
