// Maps the names of a module's tensors to places in its dicts, planned once per module. NOTE
// [Swapping tensors] in python/modules/modules.h.
#pragma once

#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "python/modules/module_swap_dicts.h"

namespace torchlayers::modules {

constexpr size_t kNowhere = static_cast<size_t>(-1); // for a name without a slot

// A parameter or a buffer: a key in one of a module's two dicts.
struct Slot {
  size_t node;
  size_t kind; // an index into Dicts::tensors
  pybind11::object key;
  std::string name;   // the first of its names
  const void* tensor; // the tensor in the slot; only its address is used
};

struct Child {
  static constexpr size_t kNone = kNowhere;       // no module
  static constexpr size_t kOpaque = kNowhere - 1; // a module that keeps its tensors elsewhere

  pybind11::object key;
  const void* module; // only its address is used
  size_t node;
};

// The contents of the slots, borrowed.
using Held = c10::SmallVector<PyObject*, 16>;

// A module, represented once however often it occurs in the tree.
struct Node {
  const void* type;        // of the module; only its address is used
  bool keeps_flat_weights; // an RNN's list of its weights, rebuilt when they change
  Dicts::Places places;
  std::vector<Child> children;
  std::array<std::vector<size_t>, 2> slots;
};

class Plan {
 public:
  explicit Plan(PyObject* module);

  // Collects the module's dicts, in the order of the nodes, and their contents, by slot. Returns
  // false if the module's structure has changed.
  bool look_at(PyObject* module, AllDicts& dicts, Held& held);

  // The slot of a name, found by following the module's children. Programs pass the same names in
  // the same order, so the i-th name of the previous call is tried first.
  size_t find(PyObject* name, size_t i);
  size_t find(PyObject* name);

  const std::vector<Node>& nodes() const {
    return nodes_;
  }
  const std::vector<Slot>& slots() const {
    return slots_;
  }
  // The slots that share a tensor with this one; empty if there are none.
  const std::vector<size_t>& tied(size_t slot) const;
  // Whether tensors that are computed from others may be cached elsewhere.
  bool is_parametrized() const {
    return is_parametrized_;
  }
  // Whether fully_shard gathers parameters in hooks.
  bool is_sharded() const {
    return is_sharded_;
  }
  bool is_none(size_t slot) const {
    return slots_[slot].tensor == Py_None;
  }

 private:
  size_t add(PyObject* module, const std::string& prefix);

  // Whether the node's children are unchanged. Also appends the children to `modules`: a module
  // that occurs for the first time comes after the known ones.
  static bool has_children(const Node& node, PyObject* dict, Held& modules);

  // Whether the slots are unchanged. Also stores their contents, and whether these are other
  // tensors than before.
  bool has_slots(
      const std::vector<size_t>& slots, PyObject* dict, Held& held, bool& has_others) const;

  // Reads which tensors are tied from the module's own tensors, also in a nested call.
  void look_at_tensors(const AllDicts& all, const Held& held);

  void read_ties();

  size_t follow(std::string_view name) const;

  std::vector<Node> nodes_; // in the order in which they are first met
  std::vector<Slot> slots_;
  std::vector<std::vector<size_t>> groups_; // of tied slots
  std::vector<size_t> group_of_;
  std::unordered_map<const void*, size_t> added_;
  pybind11::dict names_; // slots by the names that were passed
  std::vector<std::pair<pybind11::object, size_t>> last_given_;
  bool is_parametrized_ = false;
  bool is_sharded_ = false;
};

// The module's plan, created if there is none. Shared, because another thread may replace it
// meanwhile.
std::shared_ptr<Plan> plan_of(PyObject* module);
std::shared_ptr<Plan> plan_anew(PyObject* module);

std::string type_of(PyObject* object);

} // namespace torchlayers::modules
