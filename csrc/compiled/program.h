// A recording as it runs: operators in order, each on what the ones before it have made.
#pragma once

#include <ATen/core/stack.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/operator.h"

namespace torchlayers::compiled {

// A value of the recording: the inputs first, and then the steps' results, counted as they come.
using Value = size_t;

// What a step is called with: a constant, a value, or a list of such.
struct Argument {
  static Argument of(c10::IValue constant);
  static Argument of(Value value);
  // `type`: of its members.
  static Argument of(std::vector<Argument> members, c10::TypePtr type);

  bool is_list() const {
    return element_type != nullptr;
  }

  c10::IValue constant;
  std::optional<Value> value;
  std::vector<Argument> members;
  c10::TypePtr element_type;
  // Nobody reads the value after this.
  bool is_last = false;
  // A tensor is wanted, and the value may be a number, which is one as `x + 2` takes it for one.
  bool may_be_number = false;
};

// What a step does where it is no operator's call: it takes arguments off the stack, and leaves
// results there.
using Function = std::function<void(torch::jit::Stack&)>;

// What a program keeps while it runs.
struct Frame {
  explicit Frame(size_t size) : values(size) {}
  std::vector<c10::IValue> values;
  torch::jit::Stack stack;
};

class Plan;

// An operator's call by its own signature, without a stack: typed_call.h.
class TypedCall {
 public:
  virtual ~TypedCall() = default;
  virtual void run(Frame& frame) const = 0;
  // What it comes to where it runs again and again on memory that stays: plan.h. False where
  // it can't be planned.
  virtual bool plan(Plan& /*plan*/) const {
    return false;
  }
};

struct Step {
  // One of the three.
  std::optional<c10::OperatorHandle> op;
  Function function;
  std::function<std::shared_ptr<const TypedCall>(const Step&)> make; // kernels.h

  std::vector<Argument> arguments;
  // Where the results go; none for one that nobody reads.
  std::vector<std::optional<Value>> results;
  // "aten::mul.Tensor, in train.py:41, `x * y`", for errors.
  std::string description;
  // ADInplaceOrView keeps account of what it writes to, or of whose view its result is.
  bool is_tracked = false;
  std::shared_ptr<const TypedCall> typed;

  // Does the work: what nobody reads any more is let go of.
  void run(Frame& frame) const;
};

class Program;

// A program while it is written.
class Recording {
 public:
  explicit Recording(size_t num_inputs)
      : num_inputs_(num_inputs), num_values_(num_inputs), are_tensors_(num_inputs, false) {}

  // The values of the results. The arguments are all those that the schema has.
  std::vector<Value> call(
      const c10::OperatorHandle& op, std::vector<Argument> arguments, std::string description);
  Value call(Function function, std::vector<Argument> arguments, std::string description);
  // A step of compiled code (kernels.h). Where it makes none, the value is nobody's.
  Value call(
      std::function<std::shared_ptr<const TypedCall>(const Step&)> make,
      std::vector<Argument> arguments,
      std::string description);
  // A member of a list of tensors.
  Value item(Value list, int64_t index);
  // The tensor with these strides. NOTE [Recorded strides] in torchlayers/fx/strides.py.
  Value lay_out(Value tensor, std::vector<int64_t> strides);

  // The program that returns these. The recording is used up.
  std::shared_ptr<const Program> finish(std::vector<Argument> outputs);

 private:
  friend class Program;
  void track();
  void place();

  void expect_tensors(const c10::TypePtr& type, Argument& argument) const;

  size_t num_inputs_;
  size_t num_values_;
  std::vector<bool> are_tensors_; // for certain
  std::vector<Step> steps_;
  std::vector<Argument> outputs_;
};

// Runs on any number of threads at once, and inside itself: what a run has made is in its frame.
class Program {
 public:
  explicit Program(Recording&& recording);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Takes the inputs off the stack, which has nothing else, and leaves the outputs there. Where
  // nothing but kernels would see the operators, autograd and Python are passed by.
  void run(torch::jit::Stack& stack) const;

  size_t num_inputs() const {
    return num_inputs_;
  }
  size_t num_outputs() const {
    return outputs_.size();
  }
  // How many values live at once, at most.
  size_t num_slots() const {
    return num_slots_;
  }
  const std::vector<Step>& steps() const {
    return steps_;
  }
  const std::vector<Argument>& outputs() const {
    return outputs_;
  }
  // Whether nothing but kernels would see what it does to these inputs.
  bool may_pass_by(const torch::jit::Stack& inputs) const;

 private:
  void run_steps(Frame& frame, bool below) const;

  size_t num_inputs_;
  size_t num_slots_;
  std::vector<Step> steps_;
  std::vector<Argument> outputs_;
  // The tensors among the steps' arguments.
  torch::jit::Stack constants_;
  // A frame that is not in use, kept for the next run.
  mutable std::atomic<Frame*> spare_ = nullptr;
};

} // namespace torchlayers::compiled
