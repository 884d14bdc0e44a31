#include "python/modules.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "python/module_plan.h"

namespace torchlayers {
namespace modules {
namespace {

namespace py = pybind11;

// One call: what it puts where.
class Call {
 public:
  Call(PyObject* module, bool tie_weights, bool strict)
      : plan_(plan_of(module)), tie_weights_(tie_weights), strict_(strict) {
    if (!plan_->look_at(module, dicts_, held_)) {
      plan_ = plan_anew(module);
      dicts_.clear();
      TORCH_INTERNAL_ASSERT(plan_->look_at(module, dicts_, held_));
    }
  }

  // False where a name is of no slot. Nothing is put in yet.
  bool take(PyObject* given) {
    values_.resize(plan_->slots().size());
    given_.reserve(static_cast<size_t>(PyDict_GET_SIZE(given)));
    PyObject *name = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(given, &at, &name, &value) != 0;) {
      const size_t slot = plan_->find(name, given_.size());
      if (slot >= values_.size()) {
        has_unplanned_ = true;
        continue;
      }
      if (!THPVariable_Check(value) && value != Py_None) {
        TORCH_CHECK_TYPE(
            false,
            "torchlayers: functional_call: '",
            text_of(name),
            "' must be a tensor, and ",
            type_of(value),
            " is not an instance of torch.Tensor.");
      }
      given_.push_back({borrowed(name), slot, borrowed(value)});
      set(slot, value, name);
      if (tie_weights_) {
        for (const size_t other : plan_->tied(slot)) {
          set(other, value, name);
        }
      }
    }
    if (strict_) {
      check_complete(given);
    }
    return !has_unplanned_;
  }

  py::object run(PyObject* func, PyObject* args, PyObject* kwargs, PyObject* settings) {
    plan_replacements(settings);
    refuse_another_thread();
    running().push_back({std::this_thread::get_id(), &dicts_, &replaced_});
    try {
      put_in(settings);
    } catch (...) {
      put_all_back();
      throw;
    }
    auto result = py::reinterpret_steal<py::object>(PyObject_Call(func, args, kwargs));
    PyObject *kind = nullptr, *error = nullptr, *trace = nullptr;
    PyErr_Fetch(&kind, &error, &trace);
    note_what_was_replaced(settings);
    put_all_back();
    PyErr_Restore(kind, error, trace);
    if (!result) {
      throw py::error_already_set();
    }
    return result;
  }

  // Pairs of the names and of what the module has put in the place of what was given.
  const std::vector<std::pair<py::object, py::object>>& replaced_by_module() const {
    return written_;
  }

 private:
  struct Given {
    py::object name;
    size_t slot;
    py::object value;
  };

  void set(size_t slot, PyObject* value, PyObject* name) {
    if (values_[slot] != nullptr && values_[slot] != value) {
      refuse_two_values(slot, name);
    }
    values_[slot] = value;
  }

  [[noreturn]] void refuse_two_values(size_t slot, PyObject* name) const {
    const auto other = std::find_if(given_.begin(), given_.end(), [&](const Given& given) {
      return given.value.ptr() == values_[slot];
    });
    const bool is_one_place =
        std::any_of(given_.begin(), given_.end() - 1, [&](const Given& given) {
          return given.slot == given_.back().slot;
        });
    TORCH_CHECK_VALUE(
        false,
        "torchlayers: functional_call got multiple values for keys ['",
        text_of(other->name.ptr()),
        "', '",
        text_of(name),
        "'], which are ",
        is_one_place ? "one tensor of a module that stands in two places. Give it once."
                     : "tied. Give one of them, or consider using tie_weights=False.");
  }

  void check_complete(PyObject* given) const {
    std::string missing, unexpected;
    const auto list = [](std::string& names, const std::string& name) {
      names += (names.empty() ? "'" : ", '") + name + "'";
    };
    for (size_t slot = 0; slot < values_.size(); ++slot) {
      if (values_[slot] == nullptr && !plan_->is_none(slot)) {
        list(missing, plan_->slots()[slot].name);
      }
    }
    PyObject *name = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(given, &at, &name, &value) != 0;) {
      const size_t slot = plan_->find(name);
      const bool is_known = slot < values_.size() ? !plan_->is_none(slot) : slot == Child::kOpaque;
      if (!is_known) {
        list(unexpected, py::cast<std::string>(py::str(py::handle(name))));
      }
    }
    if (missing.empty() && unexpected.empty()) {
      return;
    }
    raise(
        "functional_call: strict, and the names are not those of the module.{}{}",
        unexpected.empty() ? "" : "\n\tUnexpected key(s): " + unexpected + ".",
        missing.empty() ? "" : "\n\tMissing key(s): " + missing + ".");
  }

  void add(PyObject* dict, PyObject* key, PyObject* before) {
    replaced_.push_back(
        {borrowed(dict), borrowed(key), before != nullptr ? borrowed(before) : py::object()});
  }

  void plan_replacements(PyObject* settings) {
    replaced_.reserve(given_.size());
    for (size_t slot = 0; slot < values_.size(); ++slot) {
      if (values_[slot] != nullptr) {
        const Slot& place = plan_->slots()[slot];
        add(dicts_[place.node].tensors[place.kind], place.key.ptr(), held_[slot]);
      }
    }
    for (size_t i = 0; i < dicts_.size(); ++i) {
      if (plan_->nodes()[i].keeps_flat_weights) {
        for (PyObject* key : {FlatWeights::names().list, FlatWeights::names().references}) {
          add(dicts_[i].own, key, item(dicts_[i].own, key));
        }
      }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(settings); ++i) {
      PyObject** setting = PySequence_Fast_ITEMS(PyTuple_GET_ITEM(settings, i));
      add(setting[0], setting[1], item(setting[0], setting[1]));
    }
  }

  void refuse_another_thread() const {
    const Running self{std::this_thread::get_id(), &dicts_, &replaced_};
    for (const Running& other : running()) {
      if (other.thread != self.thread && (reaches(self, *other.dicts) || reaches(other, dicts_))) {
        raise(
            "functional_call: another thread is calling this module, or one that shares tensors "
            "with it, with tensors of its own, and would meet this one's. Give each thread a copy "
            "(copy.deepcopy), or let a lock keep them apart.");
      }
    }
  }

  void put_in(PyObject* settings) {
    const auto put = [](const Replacement& place, PyObject* value) {
      if (PyDict_SetItem(place.dict.ptr(), place.key.ptr(), value) != 0) {
        PyErr_Clear(); // the key is there: nothing can fail
      }
    };
    auto place = replaced_.begin();
    for (PyObject* value : values_) {
      if (value != nullptr) {
        put(*place++, value);
      }
    }
    for (size_t i = 0; i < dicts_.size(); ++i) {
      if (plan_->nodes()[i].keeps_flat_weights) {
        FlatWeights::list_anew(dicts_[i]);
      }
    }
    place = replaced_.end() - PyTuple_GET_SIZE(settings);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(settings); ++i) {
      put(*place++, PySequence_Fast_ITEMS(PyTuple_GET_ITEM(settings, i))[2]);
    }
  }

  void note_what_was_replaced(PyObject* settings) {
    for (const Given& given : given_) {
      const Slot& place = plan_->slots()[given.slot];
      PyObject* now = PyDict_GetItem(dicts_[place.node].tensors[place.kind], place.key.ptr());
      if (now != nullptr && now != given.value.ptr()) {
        written_.emplace_back(given.name, borrowed(now));
      }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(settings); ++i) {
      PyObject* setting = PyTuple_GET_ITEM(settings, i);
      PyObject** place = PySequence_Fast_ITEMS(setting);
      PyObject* now = PyDict_GetItem(place[0], place[1]);
      if (PyList_CheckExact(setting) && now != nullptr && now != place[2]) {
        Py_INCREF(now);
        PyList_SetItem(setting, 2, now);
      }
    }
  }

  void put_all_back() {
    std::for_each(replaced_.rbegin(), replaced_.rend(), put_back);
    const auto self = std::find_if(running().rbegin(), running().rend(), [&](const Running& call) {
      return call.replaced == &replaced_;
    });
    running().erase(std::next(self).base());
  }

  std::shared_ptr<Plan> plan_;
  const bool tie_weights_;
  const bool strict_;
  AllDicts dicts_;
  Held held_;   // what the module had when the call began
  Held values_; // by slot; nullptr where the module's own stays
  c10::SmallVector<Given, 8> given_;
  Replacements replaced_;
  std::vector<std::pair<py::object, py::object>> written_;
  bool has_unplanned_ = false;
};

// See modules.h.
PyObject* call_module(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  PyObject *module = given[0], *func = given[1], *tensors = given[2], *settings = given[7];
  if (torch::jit::tracer::isTracing()) {
    raise("functional_call: can't be used with jitted modules, and torch.jit.trace is at work.");
  }
  Call call(module, PyObject_IsTrue(given[5]) == 1, PyObject_IsTrue(given[6]) == 1);
  if (!call.take(tensors)) {
    Py_RETURN_NOTIMPLEMENTED;
  }
  PyObject* kwargs = given[4] == Py_None ? nullptr : given[4];
  const auto update = [&] {
    for (const auto& [name, value] : call.replaced_by_module()) {
      if (PyDict_SetItem(tensors, name.ptr(), value.ptr()) != 0) {
        throw py::error_already_set();
      }
    }
  };
  try {
    py::object result = call.run(func, given[3], kwargs, settings);
    update();
    return result.release().ptr();
  } catch (const py::error_already_set&) {
    update();
    throw;
  }
  END_HANDLE_TH_ERRORS
}

// unplanned_names(module, given): those that are no parameter and no buffer.
PyObject* unplanned_names(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  const auto plan = plan_of(given[0]);
  py::list names;
  PyObject *name = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(given[1], &at, &name, &value) != 0;) {
    if (plan->find(name) >= plan->slots().size()) {
      names.append(borrowed(name));
    }
  }
  return names.release().ptr();
  END_HANDLE_TH_ERRORS
}

template <PyObject* (*Function)(PyObject*, PyObject* const*, Py_ssize_t)>
PyMethodDef fast(const char* name) {
  return {
      name,
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Function)),
      METH_FASTCALL,
      nullptr};
}

} // namespace
} // namespace modules

void bind_modules(pybind11::module_& m) {
  static PyMethodDef methods[] = {
      modules::fast<modules::call_module>("call_module"),
      modules::fast<modules::unplanned_names>("unplanned_names"),
      {nullptr, nullptr, 0, nullptr}};
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) {
    throw pybind11::error_already_set();
  }
}

} // namespace torchlayers
