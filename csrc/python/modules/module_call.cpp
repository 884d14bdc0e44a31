#include "python/modules/module_call.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <string>
#include <thread>

#include "core/errors.h"
#include "core/patches.h"
#include "python/tree.h"

namespace torchlayers::modules {

namespace py = pybind11;

namespace {

// Parametrizations may cache what they compute (torch.nn.utils.parametrize.cached): from other
// tensors than the given ones. So the call gets a cache of its own.
py::object with_own_cache(py::object settings) {
  static PyObject* module = py::module_::import("torch.nn.utils.parametrize").release().ptr();
  static PyObject *enabled = interned("_cache_enabled"), *cache = interned("_cache");
  PyObject* dict = PyModule_GetDict(module);
  if (PyObject_IsTrue(item(dict, enabled)) != 1) {
    return settings;
  }
  const auto own = py::make_tuple(borrowed(dict), borrowed(cache), py::dict());
  return settings + py::make_tuple(own);
}

// Visits the settings of a call: (dict, key, value).
template <class Visit>
void for_each_setting(const py::object& settings, const Visit& visit) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(settings.ptr()); ++i) {
    PyObject* setting = PyTuple_GET_ITEM(settings.ptr(), i);
    PyObject** place = PySequence_Fast_ITEMS(setting);
    visit(setting, place[0], place[1], place[2]);
  }
}

} // namespace

Call::Call(PyObject* module, PyObject* settings, bool tie_weights, bool strict)
    : module_(module),
      plan_(plan_of(module)),
      settings_(borrowed(settings)),
      tie_weights_(tie_weights),
      strict_(strict) {
  if (!plan_->look_at(module, dicts_, held_)) {
    plan_ = plan_anew(module);
    dicts_.clear();
    TORCH_INTERNAL_ASSERT(plan_->look_at(module, dicts_, held_));
  }
  if (plan_->is_parametrized()) {
    settings_ = with_own_cache(std::move(settings_));
  }
  if (plan_->is_sharded()) {
    settings_ = settings_ + imported("torchlayers.distributed.fsdp", "hooks")(py::handle(module));
  }
}

bool Call::take(PyObject* given) {
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
          "' must be a tensor, but ",
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

py::object Call::run(
    ternaryfunc call, PyObject* func, PyObject* args, PyObject* kwargs, PyObject* given) {
  plan_replacements();
  refuse_another_thread();
  const Patched patched;
  running().push_back({std::this_thread::get_id(), &dicts_, &replaced_});
  try {
    put_in();
  } catch (...) {
    put_all_back();
    throw;
  }
  auto result = py::reinterpret_steal<py::object>(call(func, args, kwargs));
  PyObject *kind = nullptr, *error = nullptr, *trace = nullptr;
  PyErr_Fetch(&kind, &error, &trace);
  note_what_was_replaced();
  put_all_back();
  for (const auto& [name, value] : written_) {
    if (PyDict_SetItem(given, name.ptr(), value.ptr()) != 0) {
      PyErr_Clear(); // can't fail: the name is already a key
    }
  }
  PyErr_Restore(kind, error, trace);
  if (!result) {
    throw py::error_already_set();
  }
  return result;
}

void Call::set(size_t slot, PyObject* value, PyObject* name) {
  if (values_[slot] != nullptr && values_[slot] != value) {
    refuse_two_values(slot, name);
  }
  values_[slot] = value;
}

void Call::refuse_two_values(size_t slot, PyObject* name) const {
  const auto other = std::find_if(given_.begin(), given_.end(), [&](const Given& given) {
    return given.value.ptr() == values_[slot];
  });
  const bool is_one_place = std::any_of(given_.begin(), given_.end() - 1, [&](const Given& given) {
    return given.slot == given_.back().slot;
  });
  TORCH_CHECK_VALUE(
      false,
      "torchlayers: functional_call got multiple values for keys ['",
      text_of(other->name.ptr()),
      "', '",
      text_of(name),
      "'], which are ",
      is_one_place ? "one tensor of a module that occurs in two places. Pass it once."
                   : "tied. Pass one of them, or consider using tie_weights=False.");
}

void Call::check_complete(PyObject* given) const {
  py::list missing, unexpected;
  for (size_t slot = 0; slot < values_.size(); ++slot) {
    if (values_[slot] == nullptr && !plan_->is_none(slot)) {
      missing.append(plan_->slots()[slot].name);
    }
  }
  PyObject *name = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(given, &at, &name, &value) != 0;) {
    const size_t slot = plan_->find(name);
    const bool is_known = slot < values_.size() ? !plan_->is_none(slot) : slot == Child::kOpaque;
    if (!is_known) {
      unexpected.append(py::str(py::handle(name)));
    }
  }
  if (!missing.empty() || !unexpected.empty()) {
    imported("torchlayers.modules.functional_call", "refuse_names")(
        py::handle(module_), unexpected, missing);
  }
}

void Call::add(PyObject* dict, PyObject* key, PyObject* before) {
  replaced_.push_back(
      {borrowed(dict), borrowed(key), before != nullptr ? borrowed(before) : py::object()});
}

void Call::plan_replacements() {
  if (plan_->is_sharded()) { // it gathers its own parameters too, which must be restored
    for (size_t slot = 0; slot < values_.size(); ++slot) {
      if (values_[slot] == nullptr && plan_->slots()[slot].kind == 0) {
        values_[slot] = held_[slot];
      }
    }
  }
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
  for_each_setting(settings_, [&](PyObject*, PyObject* dict, PyObject* key, PyObject*) {
    add(dict, key, item(dict, key));
  });
}

void Call::refuse_another_thread() const {
  const Running self{std::this_thread::get_id(), &dicts_, &replaced_};
  for (const Running& other : running()) {
    if (other.thread != self.thread && (reaches(self, *other.dicts) || reaches(other, dicts_))) {
      raise(
          "functional_call: another thread is calling this module, or one that shares tensors with "
          "it, with other tensors, and would see this thread's. Give each thread a copy "
          "(copy.deepcopy), or use a lock.");
    }
  }
}

void Call::put_in() {
  const auto put = [](const Replacement& place, PyObject* value) {
    if (PyDict_SetItem(place.dict.ptr(), place.key.ptr(), value) != 0) {
      PyErr_Clear(); // can't fail: the key exists
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
  place = replaced_.end() - PyTuple_GET_SIZE(settings_.ptr());
  for_each_setting(
      settings_, [&](PyObject*, PyObject*, PyObject*, PyObject* value) { put(*place++, value); });
}

void Call::note_what_was_replaced() {
  for (const Given& given : given_) {
    const Slot& place = plan_->slots()[given.slot];
    PyObject* now = item_if_any(dicts_[place.node].tensors[place.kind], place.key.ptr());
    if (now != nullptr && now != given.value.ptr()) {
      written_.emplace_back(given.name, borrowed(now));
    }
  }
  for_each_setting(
      settings_, [](PyObject* setting, PyObject* dict, PyObject* key, PyObject* value) {
        PyObject* now = item_if_any(dict, key);
        if (PyList_CheckExact(setting) && now != nullptr && now != value) {
          Py_INCREF(now);
          PyList_SetItem(setting, 2, now);
        }
      });
}

void Call::put_all_back() {
  std::for_each(replaced_.rbegin(), replaced_.rend(), put_back);
  const auto self = std::find_if(running().rbegin(), running().rend(), [&](const Running& call) {
    return call.replaced == &replaced_;
  });
  running().erase(std::next(self).base());
}

} // namespace torchlayers::modules
