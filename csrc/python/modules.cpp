#include "python/modules.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/errors.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

py::object borrowed(PyObject* object) {
  return py::reinterpret_borrow<py::object>(object);
}

// What is never let go: it outlives the interpreter, as the plans do.
PyObject* interned(const char* text) {
  PyObject* name = PyUnicode_InternFromString(text);
  if (name == nullptr) {
    throw py::error_already_set();
  }
  return name;
}

// Of the dict, borrowed; nullptr where there is none.
PyObject* item(PyObject* dict, PyObject* key) {
  PyObject* value = PyDict_GetItemWithError(dict, key);
  if (value == nullptr && PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  return value;
}

std::string text_of(PyObject* name) {
  return py::cast<std::string>(py::handle(name));
}

std::string type_of(PyObject* object) {
  return Py_TYPE(object)->tp_name;
}

struct TorchClasses {
  py::object module, script, data_parallel, rnn;
};

const TorchClasses& classes() {
  static const auto* found = [] {
    const auto nn = py::module_::import("torch.nn");
    return new TorchClasses{
        nn.attr("Module"),
        py::module_::import("torch.jit").attr("ScriptModule"),
        nn.attr("DataParallel"),
        nn.attr("RNNBase")};
  }();
  return *found;
}

// The dicts of a module that is there now, borrowed from it.
struct Dicts {
  PyObject* own;
  PyObject* modules;
  // Parameters, buffers.
  std::array<PyObject*, 2> tensors;

  // Nothing where the module keeps its tensors elsewhere, as a script module does.
  static std::optional<Dicts> of(PyObject* module) {
    static PyObject* const modules_name = interned("_modules");
    static PyObject* const parameters_name = interned("_parameters");
    static PyObject* const buffers_name = interned("_buffers");
    auto own = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(module, nullptr));
    if (!own) {
      PyErr_Clear();
      return std::nullopt;
    }
    const Dicts dicts{
        own.ptr(), // the module holds it
        item(own.ptr(), modules_name),
        {item(own.ptr(), parameters_name), item(own.ptr(), buffers_name)}};
    const auto is_dict = [](PyObject* dict) { return dict != nullptr && PyDict_Check(dict); };
    const bool has_all =
        is_dict(dicts.modules) && is_dict(dicts.tensors[0]) && is_dict(dicts.tensors[1]);
    return has_all ? std::optional(dicts) : std::nullopt;
  }
};

constexpr size_t kNowhere = static_cast<size_t>(-1); // a name of no slot

// A parameter or a buffer: a key of one of a module's two dicts.
struct Slot {
  size_t node;
  size_t kind; // an index of Dicts::tensors
  py::object key;
  std::string name;   // the first of its names
  const void* tensor; // whose place it is: compared alone
};

struct Child {
  static constexpr size_t kNone = kNowhere;       // no module
  static constexpr size_t kOpaque = kNowhere - 1; // one that keeps its tensors elsewhere

  py::object key;
  const void* module; // compared alone
  size_t node;
};

// A module, once, however often it stands in the tree.
struct Node {
  bool keeps_flat_weights; // an RNN's list of its weights, which it makes anew where they change
  std::vector<Child> children;
  std::array<std::vector<size_t>, 2> slots;
};

// A value of a dict that is to be put back.
struct Replaced {
  py::object dict, key;
  py::object before; // none where the dict had no such key
};

void put_back(const Replaced& replaced) {
  const int failed =
      replaced.before
          ? PyDict_SetItem(replaced.dict.ptr(), replaced.key.ptr(), replaced.before.ptr())
          : PyDict_DelItem(replaced.dict.ptr(), replaced.key.ptr());
  if (failed != 0) {
    PyErr_Clear(); // it is gone already
  }
}

// A call between putting tensors in and putting them back.
struct Running {
  std::thread::id thread;
  const std::vector<Dicts>* dicts; // of all its modules
  const std::vector<Replaced>* replaced;
};

// On all threads, those begun first in front.
std::vector<Running>& running() {
  static auto* calls = new std::vector<Running>;
  return *calls;
}

// What the call puts in is read by the module that has these dicts.
bool reaches(const Running& call, const std::vector<Dicts>& dicts) {
  std::unordered_set<const void*> read;
  for (const Dicts& module : dicts) {
    read.insert(module.tensors.begin(), module.tensors.end());
    read.insert(module.own);
  }
  return std::any_of(call.replaced->begin(), call.replaced->end(), [&](const Replaced& replaced) {
    return read.count(replaced.dict.ptr()) != 0;
  });
}

// What the dict held before this thread's calls that are running put tensors in.
PyObject* original(PyObject* dict, PyObject* key, PyObject* now) {
  for (const Running& call : running()) {
    if (call.thread != std::this_thread::get_id()) {
      continue;
    }
    for (const Replaced& replaced : *call.replaced) {
      if (replaced.dict.ptr() == dict && replaced.key.ptr() == key && replaced.before) {
        return replaced.before.ptr();
      }
    }
  }
  return now;
}

class Plan {
 public:
  explicit Plan(PyObject* module) {
    add(module, "");
    read_ties();
  }

  // The module's dicts, in the order of the nodes, or nothing where it is built otherwise now.
  std::optional<std::vector<Dicts>> dicts_of(PyObject* module) {
    std::vector<PyObject*> modules(nodes_.size());
    std::vector<Dicts> all;
    all.reserve(nodes_.size());
    modules[0] = module;
    bool has_others = false; // other tensors than before
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const auto dicts = Dicts::of(modules[i]);
      if (!dicts || !has_children(nodes_[i], dicts->modules, modules) ||
          !has_slots(nodes_[i].slots[0], dicts->tensors[0], has_others) ||
          !has_slots(nodes_[i].slots[1], dicts->tensors[1], has_others)) {
        return std::nullopt;
      }
      all.push_back(*dicts);
    }
    if (has_others) {
      look_at_tensors(all);
    }
    return all;
  }

  // Where the name leads, from the module through its children. Programs give the same names in
  // the same order, and the i-th is looked at first.
  size_t find(PyObject* name, size_t i) {
    if (i < last_given_.size() && last_given_[i].first.ptr() == name) {
      return last_given_[i].second;
    }
    const size_t slot = find(name);
    if (i <= last_given_.size() && slot < slots_.size()) {
      last_given_.resize(i);
      last_given_.emplace_back(borrowed(name), slot);
    }
    return slot;
  }
  size_t find(PyObject* name) {
    if (PyObject* known = item(names_.ptr(), name)) {
      return PyLong_AsSize_t(known);
    }
    const size_t slot = PyUnicode_Check(name) ? follow(text_of(name)) : kNowhere;
    if (slot < slots_.size()) {
      names_[py::handle(name)] = slot;
    }
    return slot;
  }

  const std::vector<Node>& nodes() const {
    return nodes_;
  }
  const std::vector<Slot>& slots() const {
    return slots_;
  }
  // The slots that share one tensor with this one; empty where it is alone.
  const std::vector<size_t>& tied(size_t slot) const {
    static const auto* alone = new std::vector<size_t>;
    return groups_.empty() || group_of_[slot] == kNowhere ? *alone : groups_[group_of_[slot]];
  }
  bool is_none(size_t slot) const {
    return slots_[slot].tensor == Py_None;
  }

 private:
  size_t add(PyObject* module, const std::string& prefix) {
    const auto dicts = Dicts::of(module);
    if (!dicts || PyObject_IsInstance(module, classes().script.ptr()) == 1) {
      return Child::kOpaque;
    }
    if (const auto known = added_.find(module); known != added_.end()) {
      return known->second;
    }
    const size_t index = nodes_.size();
    added_.emplace(module, index);
    const bool is_rnn = PyObject_IsInstance(module, classes().rnn.ptr()) == 1;
    nodes_.push_back({is_rnn, {}, {}});
    for (size_t kind = 0; kind < dicts->tensors.size(); ++kind) {
      PyObject *key = nullptr, *tensor = nullptr;
      for (Py_ssize_t at = 0; PyDict_Next(dicts->tensors[kind], &at, &key, &tensor) != 0;) {
        nodes_[index].slots[kind].push_back(slots_.size());
        const void* owner = original(dicts->tensors[kind], key, tensor);
        slots_.push_back({index, kind, borrowed(key), prefix + text_of(key), owner});
      }
    }
    PyObject *key = nullptr, *child = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(dicts->modules, &at, &key, &child) != 0;) {
      const size_t node = child == Py_None ? Child::kNone : add(child, prefix + text_of(key) + ".");
      nodes_[index].children.push_back({borrowed(key), child, node});
    }
    return index;
  }

  // Also notes where the children are: a module that is met for the first time is below `modules`'
  // known ones.
  static bool has_children(const Node& node, PyObject* dict, std::vector<PyObject*>& modules) {
    if (static_cast<size_t>(PyDict_GET_SIZE(dict)) != node.children.size()) {
      return false;
    }
    PyObject *key = nullptr, *module = nullptr;
    auto child = node.children.begin();
    for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &module) != 0; ++child) {
      if (key != child->key.ptr() || module != child->module) {
        return false;
      }
      if (child->node < modules.size()) {
        modules[child->node] = module;
      }
    }
    return true;
  }

  bool has_slots(const std::vector<size_t>& slots, PyObject* dict, bool& has_others) const {
    if (static_cast<size_t>(PyDict_GET_SIZE(dict)) != slots.size()) {
      return false;
    }
    PyObject *key = nullptr, *tensor = nullptr;
    auto slot = slots.begin();
    for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &tensor) != 0; ++slot) {
      if (key != slots_[*slot].key.ptr()) {
        return false;
      }
      has_others |= tensor != slots_[*slot].tensor;
    }
    return true;
  }

  // Which are tied is read off the module's own tensors, also in a call within a call.
  void look_at_tensors(const std::vector<Dicts>& all) {
    bool has_changed = false;
    for (Slot& slot : slots_) {
      PyObject* dict = all[slot.node].tensors[slot.kind];
      const void* owner = original(dict, slot.key.ptr(), item(dict, slot.key.ptr()));
      has_changed |= owner != slot.tensor;
      slot.tensor = owner;
    }
    if (has_changed) {
      read_ties();
    }
  }

  void read_ties() {
    std::unordered_map<const void*, std::vector<size_t>> places;
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (!is_none(i)) {
        places[slots_[i].tensor].push_back(i);
      }
    }
    groups_.clear();
    group_of_.assign(slots_.size(), kNowhere);
    for (auto& [tensor, slots] : places) {
      if (slots.size() > 1) {
        for (const size_t slot : slots) {
          group_of_[slot] = groups_.size();
        }
        groups_.push_back(std::move(slots));
      }
    }
  }

  size_t follow(std::string_view name) const {
    size_t node = 0;
    for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.')) {
      const auto& children = nodes_[node].children;
      const auto child = std::find_if(children.begin(), children.end(), [&](const Child& child) {
        return text_of(child.key.ptr()) == name.substr(0, dot);
      });
      if (child == children.end() || child->node >= nodes_.size()) {
        return child == children.end() ? kNowhere : child->node;
      }
      node = child->node;
      name.remove_prefix(dot + 1);
    }
    for (const auto& slots : nodes_[node].slots) {
      for (const size_t slot : slots) {
        if (text_of(slots_[slot].key.ptr()) == name) {
          return slot;
        }
      }
    }
    return kNowhere;
  }

  std::vector<Node> nodes_; // those met first in front
  std::vector<Slot> slots_;
  std::vector<std::vector<size_t>> groups_; // of tied slots
  std::vector<size_t> group_of_;
  std::unordered_map<const void*, size_t> added_;
  py::dict names_; // slots by the names that were given
  std::vector<std::pair<py::object, size_t>> last_given_;
};

// The plans of all modules that live, and of some that do not.
class Plans {
 public:
  static Plans& all() {
    static auto* plans = new Plans;
    return *plans;
  }

  // Shared, because another thread may plan anew meanwhile.
  std::shared_ptr<Plan> of(PyObject* module) {
    const auto known = plans_.find(module);
    if (known != plans_.end() && PyWeakref_GetObject(known->second.module.ptr()) == module) {
      return known->second.plan;
    }
    return make(module);
  }

  std::shared_ptr<Plan> make(PyObject* module) {
    check(module);
    if (plans_.size() >= next_sweep_) {
      sweep();
    }
    auto weak = py::reinterpret_steal<py::object>(PyWeakref_NewRef(module, nullptr));
    if (!weak) {
      throw py::error_already_set();
    }
    auto plan = std::make_shared<Plan>(module);
    plans_[module] = {std::move(weak), plan};
    return plan;
  }

 private:
  struct Entry {
    py::object module; // a weak reference
    std::shared_ptr<Plan> plan;
  };

  static void check(PyObject* module) {
    if (PyObject_IsInstance(module, classes().module.ptr()) != 1) {
      TORCH_CHECK_TYPE(
          false,
          "torchlayers: functional_call: the first argument must be an nn.Module, got ",
          type_of(module),
          ".");
    }
    if (PyObject_IsInstance(module, classes().script.ptr()) == 1) {
      raise(
          "functional_call: can't be used with jitted modules: they keep their tensors for "
          "themselves. Call it on the module that this one was made of.");
    }
    if (PyObject_IsInstance(module, classes().data_parallel.ptr()) == 1) {
      raise(
          "functional_call: can't be used with nn.DataParallel, which copies its module to "
          "devices. Call it on the module inside, `.module`.");
    }
  }

  void sweep() {
    for (auto entry = plans_.begin(); entry != plans_.end();) {
      const bool is_dead = PyWeakref_GetObject(entry->second.module.ptr()) == Py_None;
      entry = is_dead ? plans_.erase(entry) : std::next(entry);
    }
    next_sweep_ = std::max<size_t>(64, 2 * plans_.size());
  }

  std::unordered_map<PyObject*, Entry> plans_;
  size_t next_sweep_ = 64;
};

// One call: what it puts where.
class Call {
 public:
  Call(PyObject* module, bool tie_weights, bool strict)
      : plan_(Plans::all().of(module)), tie_weights_(tie_weights), strict_(strict) {
    auto dicts = plan_->dicts_of(module);
    if (!dicts) {
      plan_ = Plans::all().make(module);
      dicts = plan_->dicts_of(module);
      TORCH_INTERNAL_ASSERT(dicts);
    }
    dicts_ = std::move(*dicts);
  }

  // False where a name is of no slot. Nothing is put in yet.
  bool take(PyObject* given) {
    values_.assign(plan_->slots().size(), nullptr);
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
    put_in(settings);
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
        "functional_call: strict, and the names are not those of the module.",
        unexpected.empty() ? "" : "\n\tUnexpected key(s): " + unexpected + ".",
        missing.empty() ? "" : "\n\tMissing key(s): " + missing + ".");
  }

  void add(PyObject* dict, PyObject* key) {
    PyObject* before = item(dict, key);
    replaced_.push_back(
        {borrowed(dict), borrowed(key), before != nullptr ? borrowed(before) : py::object()});
  }

  void plan_replacements(PyObject* settings) {
    replaced_.reserve(given_.size());
    for (size_t slot = 0; slot < values_.size(); ++slot) {
      if (values_[slot] != nullptr) {
        const Slot& place = plan_->slots()[slot];
        add(dicts_[place.node].tensors[place.kind], place.key.ptr());
      }
    }
    static PyObject* const weights = interned("_flat_weights");
    static PyObject* const references = interned("_flat_weight_refs");
    for (size_t i = 0; i < dicts_.size(); ++i) {
      if (plan_->nodes()[i].keeps_flat_weights) {
        add(dicts_[i].own, weights);
        add(dicts_[i].own, references);
      }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(settings); ++i) {
      PyObject** setting = PySequence_Fast_ITEMS(PyTuple_GET_ITEM(settings, i));
      add(setting[0], setting[1]);
    }
  }

  void refuse_another_thread() const {
    const Running self{std::this_thread::get_id(), &dicts_, &replaced_};
    for (const Running& other : running()) {
      if (other.thread != self.thread && (reaches(self, *other.dicts) || reaches(other, dicts_))) {
        raise(
            "functional_call: another thread is calling this module, or one that shares tensors "
            "with it, with tensors of its own, and would meet this one's. Give each thread a "
            "copy (copy.deepcopy), or let a lock keep them apart.");
      }
    }
  }

  void put_in(PyObject* settings) {
    running().push_back({std::this_thread::get_id(), &dicts_, &replaced_});
    const auto put = [](const Replaced& place, PyObject* value) {
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
  std::vector<Dicts> dicts_;
  std::vector<PyObject*> values_; // by slot; nullptr where the module's own stays
  std::vector<Given> given_;
  std::vector<Replaced> replaced_;
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
  Call call(module, given[5] == Py_True, given[6] == Py_True);
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
  const auto plan = Plans::all().of(given[0]);
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

void bind_modules(py::module_& m) {
  static PyMethodDef methods[] = {
      fast<call_module>("call_module"),
      fast<unplanned_names>("unplanned_names"),
      {nullptr, nullptr, 0, nullptr}};
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) {
    throw py::error_already_set();
  }
}

} // namespace torchlayers
