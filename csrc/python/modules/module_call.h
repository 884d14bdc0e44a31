// One call of a module with given tensors: puts them in and restores the originals. NOTE [Swapping
// tensors] in python/modules/modules.h.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "python/modules/module_swap_plan.h"

namespace torchlayers::modules {

class Call {
 public:
  Call(PyObject* module, PyObject* settings, bool tie_weights, bool strict);

  // Takes the given tensors; false if a name has no slot. Does not put anything in yet.
  bool take(PyObject* given);

  // call(func, args, kwargs), like PyObject_Call, with the tensors put in. Afterwards `given` holds
  // the replacements that the function has made.
  pybind11::object run(
      ternaryfunc call, PyObject* func, PyObject* args, PyObject* kwargs, PyObject* given);

 private:
  struct Given {
    pybind11::object name;
    size_t slot;
    pybind11::object value;
  };

  void set(size_t slot, PyObject* value, PyObject* name);
  [[noreturn]] void refuse_two_values(size_t slot, PyObject* name) const;
  void check_complete(PyObject* given) const;
  void add(PyObject* dict, PyObject* key, PyObject* before);
  void plan_replacements();
  void refuse_another_thread() const;
  void put_in();
  void note_what_was_replaced();
  void put_all_back();

  PyObject* const module_; // borrowed from the caller
  std::shared_ptr<Plan> plan_;
  pybind11::object settings_;
  const bool tie_weights_;
  const bool strict_;
  AllDicts dicts_;
  Held held_;   // the module's content at the beginning of the call
  Held values_; // by slot; nullptr where the module's own tensor stays
  c10::SmallVector<Given, 8> given_;
  Replacements replaced_;
  // Names, and the values by which the function replaced the given tensors.
  std::vector<std::pair<pybind11::object, pybind11::object>> written_;
  bool has_unplanned_ = false;
};

} // namespace torchlayers::modules
