// What the core asks of Python and of the rooms above it, which fill it in.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/operator_name.h>

#include <functional>
#include <memory>
#include <string>

#include "core/operator.h"

namespace torch::autograd {
struct Node;
} // namespace torch::autograd

namespace torchlayers {

struct Hooks {
  // Whether Python code is running on this thread.
  bool (*python_is_running)() = [] { return true; };
  // " In train.py:41, `loss.item()`." for the user's innermost line, or "" where no Python is
  // running.
  std::string (*python_location)() = [] { return std::string(); };
  // Lets Python's signal handlers run, and throws what they raise.
  void (*raise_if_interrupted)() = [] {};
  // Forward AD's one level, whose count torch keeps in Python. NOTE [One dual level].
  void (*hold_dual_level)() = [] {};
  void (*release_dual_level)() = [] {};
  // Calls what the operator is made of instead of it; false where nothing is known of that.
  bool (*decompose)(const Operator& op, Args& args) = [](const Operator&, Args&) { return false; };
  // Gives what a random operator gives, by a key, in the place of its arguments; false where with
  // these it draws nothing. Throws where nothing is known of it. `who` draws.
  bool (*draw)(
      const Operator& op,
      Args& args,
      const std::string& who,
      const std::function<at::Tensor()>& next_key) =
      [](const Operator&, Args&, const std::string&, const std::function<at::Tensor()>&) {
        return false;
      };
  // Lets ranks that hold different parts of a tensor draw numbers of their own, until what is
  // returned is gone. Null where there is no need.
  std::shared_ptr<void> (*draw_apart)(const at::Tensor& tensor) =
      [](const at::Tensor&) -> std::shared_ptr<void> { return nullptr; };
  // The rank that this process has in a process group, or in one of this name.
  int64_t (*rank_in_group)(const c10::IValue& group) = [](const c10::IValue&) -> int64_t {
    return 0;
  };
  // A tensor of a Python class is about to be a value of a level.
  void (*met_subclass)(const at::Tensor& tensor) = [](const at::Tensor&) {};
  // Tells Python what to call nodes of this type.
  void (*name_type_of_nodes)(const std::type_info& type, const std::string& name) =
      [](const std::type_info&, const std::string&) {};
  // Whether a hook on one of the nodes asks torch's engine about the pass that it runs in.
  bool (*any_needs_engine)(at::ArrayRef<torch::autograd::Node*> nodes) =
      [](at::ArrayRef<torch::autograd::Node*>) { return false; };
  // "train.py:41, `loss.log()`" for the user's line that the node was recorded for, which anomaly
  // mode keeps; or "".
  std::string (*line_of_node)(torch::autograd::Node& node) = [](torch::autograd::Node&) {
    return std::string();
  };
  // Lets the saved-tensor hooks that are on run where they belong. NOTE [Where a hook runs].
  void (*adopt_saved_hooks)() = [] {};
  // A tensor made inside a vmap has been written to: it is to print as what it stands for.
  void (*something_was_written)() = [] {};
  // What rules/ has for an operator of this name.
  OperatorRules (*find_rules)(const c10::OperatorName& name) = [](const c10::OperatorName&) {
    return OperatorRules();
  };
};

inline constinit Hooks hooks; // until they are filled in, as if nobody were there

} // namespace torchlayers
