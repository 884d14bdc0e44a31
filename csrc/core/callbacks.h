// Functions that core needs from Python and from the directories above it, which install them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/operator_name.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/operator.h"

namespace torch::autograd {
struct Node;
} // namespace torch::autograd

namespace torchlayers {

enum class ErrorClass : uint8_t;

struct Callbacks {
  // Whether Python code is running on this thread.
  bool (*python_is_running)() = [] { return true; };
  // " In train.py:41, `loss.item()`." for the user's innermost line, or "" where no Python is
  // running.
  std::string (*python_location)() = [] { return std::string(); };
  // A number that stands for that line; -1 where no Python is running, and where nobody asks.
  int64_t (*user_line)() = [] { return int64_t(-1); };
  // Throws an error of a class: core/errors.h, NOTE [Errors with a class].
  void (*raise)(ErrorClass error_class, const std::string& text, bool was_said_again) =
      [](ErrorClass, const std::string&, bool) {};
  // Lets Python's signal handlers run, and throws what they raise.
  void (*raise_if_interrupted)() = [] {};
  // Forward AD's one level, whose count torch keeps in Python. NOTE [One dual level].
  void (*hold_dual_level)() = [] {};
  void (*release_dual_level)() = [] {};
  // Runs the operator's decomposition instead of it; returns false if none is known.
  bool (*decompose)(const Operator& op, Args& args) = [](const Operator&, Args&) { return false; };
  // Replaces a random operator's arguments with results drawn from a key; returns false if the
  // operator draws nothing for these arguments. Throws if no keyed implementation is known. `who`
  // names the layer that draws.
  bool (*draw)(
      const Operator& op,
      Args& args,
      const std::string& who,
      const std::function<at::Tensor()>& next_key) =
      [](const Operator&, Args&, const std::string&, const std::function<at::Tensor()>&) {
        return false;
      };
  // Lets ranks that hold different shards of a tensor draw different numbers, until the returned
  // object is destroyed. Null where that is not needed.
  std::shared_ptr<void> (*draw_apart)(const at::Tensor& tensor) =
      [](const at::Tensor&) -> std::shared_ptr<void> { return nullptr; };
  // This process's rank in a process group, which is given itself or by name.
  int64_t (*rank_in_group)(const c10::IValue& group) = [](const c10::IValue&) -> int64_t {
    return 0;
  };
  // Called when a tensor of a Python subclass is about to become a value of a level.
  void (*met_subclass)(const at::Tensor& tensor) = [](const at::Tensor&) {};
  // Sets the name under which Python shows nodes of this type.
  void (*name_type_of_nodes)(const std::type_info& type, const std::string& name) =
      [](const std::type_info&, const std::string&) {};
  // Whether a hook on one of the nodes queries torch's engine about the backward pass it runs in.
  bool (*any_needs_engine)(at::ArrayRef<torch::autograd::Node*> nodes) =
      [](at::ArrayRef<torch::autograd::Node*>) { return false; };
  // "train.py:41, `loss.log()`": the user's line that recorded the node, which anomaly mode stores;
  // or "".
  std::string (*line_of_node)(torch::autograd::Node& node) = [](torch::autograd::Node&) {
    return std::string();
  };
  // Makes the active saved-tensor hooks run on their own stack. NOTE [Where a hook runs].
  void (*adopt_saved_hooks)() = [] {};
  // Replaces functions of torch, until both were called equally often. NOTE [Patches].
  void (*put_patches_in)() = [] {};
  void (*take_patches_out)() = [] {};
  // The rules in rules/ for the operator of this name.
  OperatorRules (*find_rules)(const c10::OperatorName& name) = [](const c10::OperatorName&) {
    return OperatorRules();
  };
};

inline constinit Callbacks callbacks; // harmless defaults until they are installed

} // namespace torchlayers
