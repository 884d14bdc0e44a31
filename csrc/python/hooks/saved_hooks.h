// A pair of saved-tensor hooks, as called by levels that save tensors.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>

#include "core/saved_stack.h"
#include "python/modules/module_swap_dicts.h"

namespace torchlayers {

// The value that hooks save in a tensor's place.
struct Kept {
  virtual ~Kept() = default;
};

// A pair of hooks: a user's, in Python, or our own. They know the stack on which they were
// activated, and the tensors with which modules were called there. NOTE [Where a hook runs].
class SavedHooks {
 public:
  // The saver of a tensor: a level, 0 for plain autograd, or enclosing hooks that save arguments.
  static constexpr int64_t kArguments = -1;

  explicit SavedHooks(bool keeps_tangents) : keeps_tangents_(keeps_tangents) {}
  virtual ~SavedHooks() = default;
  SavedHooks(const SavedHooks&) = delete;
  SavedHooks& operator=(const SavedHooks&) = delete;

  // The value to save in the tensor's place; null to save the tensor to which the argument is set.
  virtual std::shared_ptr<Kept> pack(at::Tensor& tensor, int64_t saved_by) = 0;
  // Restores the tensor. `stack` is the one on which it was saved.
  virtual at::Tensor unpack(Kept& kept, const StackCopy& stack) = 0;

  // An attribute of the pack hook, for code that inspects the active hooks.
  virtual pybind11::object attribute(const std::string& name) const;

  // Whether tangents are saved in addition to what `pack` saves, because `unpack` returns no
  // tangents.
  bool keeps_tangents() const {
    return keeps_tangents_;
  }
  const std::shared_ptr<const StackCopy>& stack() const {
    return stack_;
  }
  const modules::Replacements& in_modules() const {
    return in_modules_;
  }

  // Called just after the hooks have been activated.
  void look_around();

 private:
  bool keeps_tangents_;
  std::shared_ptr<const StackCopy> stack_;
  modules::Replacements in_modules_;
};

// The hooks hold Python objects, so they are destroyed with the GIL held.
template <class Hooks, class... Given>
std::shared_ptr<Hooks> make_hooks(Given&&... given) {
  return {new Hooks(std::forward<Given>(given)...), [](Hooks* hooks) {
            const pybind11::gil_scoped_acquire gil;
            delete hooks;
          }};
}

// Activates the hooks, as the innermost pair, during a block of Python.
class HooksOn {
 public:
  explicit HooksOn(std::shared_ptr<SavedHooks> hooks) : hooks_(std::move(hooks)) {}
  void enter() const;
  static void exit();

 private:
  std::shared_ptr<SavedHooks> hooks_;
};

} // namespace torchlayers
