// A pair of saved-tensor hooks, as levels call it that save tensors.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>

#include "core/earlier_stack.h"
#include "python/module_dicts.h"

namespace torchlayers {

// What hooks keep in a tensor's place.
struct Kept {
  virtual ~Kept() = default;
};

// Of a user's, in Python, or of ours. They know the stack that they were put on in, and the tensors
// that modules were called with there. NOTE [Where a hook runs].
class SavedHooks {
 public:
  // Who saves a tensor: a level, 0 for plain autograd, or hooks around these, which keep arguments.
  static constexpr int64_t kArguments = -1;

  explicit SavedHooks(bool keeps_tangents) : keeps_tangents_(keeps_tangents) {}
  virtual ~SavedHooks() = default;
  SavedHooks(const SavedHooks&) = delete;
  SavedHooks& operator=(const SavedHooks&) = delete;

  // What is kept in the tensor's place; null for the tensor that it is set to.
  virtual std::shared_ptr<Kept> pack(at::Tensor& tensor, int64_t saved_by) = 0;
  // The numbers again. `stack` is the one that the tensor was saved on.
  virtual at::Tensor unpack(Kept& kept, const StackCopy& stack) = 0;

  // An attribute of the pack hook, as who looks at the one that is on finds it.
  virtual pybind11::object attribute(const std::string& name) const;

  // Whether tangents are kept beside what `pack` keeps, as what `unpack` returns has none.
  bool keeps_tangents() const {
    return keeps_tangents_;
  }
  const std::shared_ptr<const StackCopy>& stack() const {
    return stack_;
  }
  const modules::Replacements& in_modules() const {
    return in_modules_;
  }

  // Just after they have been put on.
  void look_around();

 private:
  bool keeps_tangents_;
  std::shared_ptr<const StackCopy> stack_;
  modules::Replacements in_modules_;
};

// They hold Python's objects, which are let go under its lock.
template <class Hooks, class... Given>
std::shared_ptr<Hooks> make_hooks(Given&&... given) {
  return {new Hooks(std::forward<Given>(given)...), [](Hooks* hooks) {
            const pybind11::gil_scoped_acquire gil;
            delete hooks;
          }};
}

// While a block of Python runs, the hooks are on, the innermost.
class HooksOn {
 public:
  explicit HooksOn(std::shared_ptr<SavedHooks> hooks) : hooks_(std::move(hooks)) {}
  void enter() const;
  static void exit();

 private:
  std::shared_ptr<SavedHooks> hooks_;
};

} // namespace torchlayers
