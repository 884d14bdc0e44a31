// Where the names of a module's tensors lead: planned once. NOTE [Swapping tensors] in
// python/modules.h.
#pragma once

#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "python/module_dicts.h"

namespace torchlayers::modules {

constexpr size_t kNowhere = static_cast<size_t>(-1); // a name of no slot

// A parameter or a buffer: a key of one of a module's two dicts.
struct Slot {
  size_t node;
  size_t kind; // an index of Dicts::tensors
  pybind11::object key;
  std::string name;   // the first of its names
  const void* tensor; // whose place it is: compared alone
};

struct Child {
  static constexpr size_t kNone = kNowhere;       // no module
  static constexpr size_t kOpaque = kNowhere - 1; // one that keeps its tensors elsewhere

  pybind11::object key;
  const void* module; // compared alone
  size_t node;
};

// What is in the slots, borrowed.
using Held = c10::SmallVector<PyObject*, 16>;

// A module, once, however often it stands in the tree.
struct Node {
  const void* type;        // of the module: compared alone
  bool keeps_flat_weights; // an RNN's list of its weights, which it makes anew where they change
  Dicts::Places places;
  std::vector<Child> children;
  std::array<std::vector<size_t>, 2> slots;
};

class Plan {
 public:
  explicit Plan(PyObject* module);

  // The module's dicts, in the order of the nodes, and what they hold, by slot. False where it is
  // built otherwise now.
  bool look_at(PyObject* module, AllDicts& dicts, Held& held);

  // Where the name leads, from the module through its children. Programs give the same names in
  // the same order, and the i-th is looked at first.
  size_t find(PyObject* name, size_t i);
  size_t find(PyObject* name);

  const std::vector<Node>& nodes() const {
    return nodes_;
  }
  const std::vector<Slot>& slots() const {
    return slots_;
  }
  // The slots that share one tensor with this one; empty where it is alone.
  const std::vector<size_t>& tied(size_t slot) const;
  // Tensors that are computed of others may be kept, elsewhere.
  bool is_parametrized() const {
    return is_parametrized_;
  }
  // fully_shard gathers parameters in hooks.
  bool is_sharded() const {
    return is_sharded_;
  }
  bool is_none(size_t slot) const {
    return slots_[slot].tensor == Py_None;
  }

 private:
  size_t add(PyObject* module, const std::string& prefix);

  // Also notes where the children are: a module that is met for the first time is below `modules`'
  // known ones.
  static bool has_children(const Node& node, PyObject* dict, Held& modules);

  // Also notes what they hold, and whether these are other tensors than before.
  bool has_slots(
      const std::vector<size_t>& slots, PyObject* dict, Held& held, bool& has_others) const;

  // Which are tied is read off the module's own tensors, also in a call within a call.
  void look_at_tensors(const AllDicts& all, const Held& held);

  void read_ties();

  size_t follow(std::string_view name) const;

  std::vector<Node> nodes_; // those met first in front
  std::vector<Slot> slots_;
  std::vector<std::vector<size_t>> groups_; // of tied slots
  std::vector<size_t> group_of_;
  std::unordered_map<const void*, size_t> added_;
  pybind11::dict names_; // slots by the names that were given
  std::vector<std::pair<pybind11::object, size_t>> last_given_;
  bool is_parametrized_ = false;
  bool is_sharded_ = false;
};

// The module's, made where there is none. Shared, because another thread may plan anew meanwhile.
std::shared_ptr<Plan> plan_of(PyObject* module);
std::shared_ptr<Plan> plan_anew(PyObject* module);

std::string type_of(PyObject* object);

} // namespace torchlayers::modules
