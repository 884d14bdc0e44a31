#include "python/modules/module_swap_plan.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "core/errors.h"
#include "python/tree.h"

namespace torchlayers::modules {

namespace py = pybind11;

namespace {

struct TorchClasses {
  py::object module, script, data_parallel, distributed, rnn, parametrizations;
};

const TorchClasses& classes() {
  static const auto* found = [] {
    const auto nn = py::module_::import("torch.nn");
    return new TorchClasses{
        nn.attr("Module"),
        py::module_::import("torch.jit").attr("ScriptModule"),
        nn.attr("DataParallel"),
        nn.attr("parallel").attr("DistributedDataParallel"),
        nn.attr("RNNBase"),
        py::module_::import("torch.nn.utils.parametrize").attr("ParametrizationList")};
  }();
  return *found;
}

} // namespace

Plan::Plan(PyObject* module) {
  add(module, "");
  read_ties();
}

bool Plan::look_at(PyObject* module, AllDicts& dicts, Held& held) {
  Held modules(nodes_.size());
  modules[0] = module;
  held.resize(slots_.size());
  bool has_others = false;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    const auto own = Dicts::of(modules[i], node.places);
    if (!own || Py_TYPE(modules[i]) != node.type || !has_children(node, own->modules, modules) ||
        !has_slots(node.slots[0], own->tensors[0], held, has_others) ||
        !has_slots(node.slots[1], own->tensors[1], held, has_others)) {
      return false;
    }
    dicts.push_back(*own);
  }
  if (has_others) {
    look_at_tensors(dicts, held);
  }
  return true;
}

size_t Plan::find(PyObject* name, size_t i) {
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

size_t Plan::find(PyObject* name) {
  if (!PyUnicode_CheckExact(name)) { // a subclass, whose comparison may run any code
    return PyUnicode_Check(name) ? follow(text_of(name)) : kNowhere;
  }
  if (PyObject* known = item(names_.ptr(), name)) {
    return PyLong_AsSize_t(known);
  }
  const size_t slot = follow(text_of(name));
  if (slot < slots_.size()) {
    names_[py::handle(name)] = slot;
  }
  return slot;
}

const std::vector<size_t>& Plan::tied(size_t slot) const {
  static const auto* alone = new std::vector<size_t>;
  return groups_.empty() || group_of_[slot] == kNowhere ? *alone : groups_[group_of_[slot]];
}

size_t Plan::add(PyObject* module, const std::string& prefix) {
  Dicts::Places places{};
  const auto dicts = Dicts::of(module, places);
  if (!dicts || PyObject_IsInstance(module, classes().script.ptr()) == 1) {
    return Child::kOpaque;
  }
  if (const auto known = added_.find(module); known != added_.end()) {
    return known->second;
  }
  const Deeper guard(" in a tree of modules");
  const size_t index = nodes_.size();
  added_.emplace(module, index);
  const bool is_rnn = PyObject_IsInstance(module, classes().rnn.ptr()) == 1;
  PyTypeObject* type = Py_TYPE(module);
  nodes_.push_back({type, is_rnn, places, {}, {}});
  is_sharded_ |= PyObject_HasAttrString(reinterpret_cast<PyObject*>(type), "_get_fsdp_state") != 0;
  is_parametrized_ |= PyObject_IsInstance(module, classes().parametrizations.ptr()) == 1;
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

bool Plan::has_children(const Node& node, PyObject* dict, Held& modules) {
  if (static_cast<size_t>(PyDict_GET_SIZE(dict)) != node.children.size()) {
    return false;
  }
  if (node.children.empty()) { // the case for most nodes
    return true;
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

bool Plan::has_slots(
    const std::vector<size_t>& slots, PyObject* dict, Held& held, bool& has_others) const {
  if (static_cast<size_t>(PyDict_GET_SIZE(dict)) != slots.size()) {
    return false;
  }
  if (slots.empty()) {
    return true;
  }
  PyObject *key = nullptr, *tensor = nullptr;
  auto slot = slots.begin();
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &tensor) != 0; ++slot) {
    if (key != slots_[*slot].key.ptr()) {
      return false;
    }
    held[*slot] = tensor;
    has_others |= tensor != slots_[*slot].tensor;
  }
  return true;
}

void Plan::look_at_tensors(const AllDicts& all, const Held& held) {
  bool has_changed = false;
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    const void* owner = original(all[slot.node].tensors[slot.kind], slot.key.ptr(), held[i]);
    has_changed |= owner != slot.tensor;
    slot.tensor = owner;
  }
  if (has_changed) {
    read_ties();
  }
}

void Plan::read_ties() {
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

size_t Plan::follow(std::string_view name) const {
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

std::string type_of(PyObject* object) {
  return Py_TYPE(object)->tp_name;
}

namespace {

// The plans of all live modules, and possibly of some dead ones.
class Plans {
 public:
  static Plans& all() {
    static auto* plans = new Plans;
    return *plans;
  }

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
          "functional_call: can't be used with jitted modules, whose tensors can't be replaced. "
          "Call it on the module that this one was compiled from.");
    }
    if (PyObject_IsInstance(module, classes().data_parallel.ptr()) == 1) {
      raise(
          "functional_call: can't be used with nn.DataParallel, which copies its module to "
          "devices. Call it on the wrapped module, `.module`.");
    }
    if (PyObject_IsInstance(module, classes().distributed.ptr()) == 1) {
      const int is_error = PyErr_WarnEx(
          PyExc_UserWarning,
          "torchlayers: functional_call: DistributedDataParallel only reduces the gradients of its "
          "own parameters, not of the given ones: each rank gets the gradient of its own data "
          "alone. Call it on the wrapped module, `.module`, and sum the gradients with "
          "torchlayers.distributed.psum_invariant(gradients, mesh), or shard the batch with "
          "torchlayers.vmap(..., mesh=mesh).",
          1);
      if (is_error != 0) {
        throw py::error_already_set();
      }
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

} // namespace

std::shared_ptr<Plan> plan_of(PyObject* module) {
  return Plans::all().of(module);
}

std::shared_ptr<Plan> plan_anew(PyObject* module) {
  return Plans::all().make(module);
}

} // namespace torchlayers::modules
