// One call of a module with given tensors: what it puts where, and back. NOTE [Swapping tensors] in
// python/modules.h.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "python/module_plan.h"

namespace torchlayers::modules {

class Call {
 public:
  Call(PyObject* module, PyObject* settings, bool tie_weights, bool strict);

  // False where a name is of no slot. Nothing is put in yet.
  bool take(PyObject* given);

  // call(func, args, kwargs), as PyObject_Call, with the tensors put in. What the function has
  // replaced meanwhile is then in `given`.
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

  PyObject* const module_; // the caller's
  std::shared_ptr<Plan> plan_;
  pybind11::object settings_;
  const bool tie_weights_;
  const bool strict_;
  AllDicts dicts_;
  Held held_;   // what the module had when the call began
  Held values_; // by slot; nullptr where the module's own stays
  c10::SmallVector<Given, 8> given_;
  Replacements replaced_;
  // The names and what the function has put in the place of what was given.
  std::vector<std::pair<pybind11::object, pybind11::object>> written_;
  bool has_unplanned_ = false;
};

} // namespace torchlayers::modules
