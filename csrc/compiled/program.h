// A captured graph in executable form: operators in order, each on results of earlier ones.
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

// A value of the captured graph: the inputs come first, then the steps' results, in order.
using Value = size_t;

// An argument of a step: a constant, a value, or a list of arguments.
struct Argument {
  static Argument of(c10::IValue constant);
  static Argument of(Value value);
  // `type`: that of the members.
  static Argument of(std::vector<Argument> members, c10::TypePtr type);

  bool is_list() const {
    return element_type != nullptr;
  }

  c10::IValue constant;
  std::optional<Value> value;
  std::vector<Argument> members;
  c10::TypePtr element_type;
  // The value is not read after this.
  bool is_last = false;
  // A tensor is expected, and the value may be a number, which becomes one as the 2 in `x + 2`
  // does.
  bool may_be_number = false;
};

// The work of a step that is not an operator call: takes arguments off the stack, and leaves
// results there.
using Function = std::function<void(torch::jit::Stack&)>;

// The state of a program while it runs.
struct Frame {
  explicit Frame(size_t size) : values(size) {}
  std::vector<c10::IValue> values;
  torch::jit::Stack stack;
};

class Plan;

// An operator call by its C++ signature, without a stack: unboxed_call.h.
class TypedCall {
 public:
  virtual ~TypedCall() = default;
  virtual void run(Frame& frame) const = 0;
  // Adds the call to a plan that runs it again and again on fixed memory: loop_plan.h. Returns
  // false if it can't be planned.
  virtual bool plan(Plan& /*plan*/) const {
    return false;
  }
  // Whether observers are told of it: it computes, and is no operator, which the dispatcher tells
  // them of.
  virtual bool is_kernel() const {
    return false;
  }
};

struct Step {
  // Exactly one of the three.
  std::optional<c10::OperatorHandle> op;
  Function function;
  std::function<std::shared_ptr<const TypedCall>(const Step&)> make; // kernels.h

  std::vector<Argument> arguments;
  // Where the results go; nullopt for one that is not read.
  std::vector<std::optional<Value>> results;
  // "aten::mul.Tensor, in train.py:41, `x * y`", for errors.
  std::string description;
  // ADInplaceOrView has to see it: it writes to memory, or returns a view, that it tracks.
  bool is_tracked = false;
  std::shared_ptr<const TypedCall> typed;
  bool is_kernel = false; // or a loop of kernels; see TypedCall

  // Runs the step, and releases values that are not read any more.
  void run(Frame& frame) const;
};

class Program;

// Builds a program.
class ProgramBuilder {
 public:
  explicit ProgramBuilder(size_t num_inputs)
      : num_inputs_(num_inputs), num_values_(num_inputs), are_tensors_(num_inputs, false) {}

  // Returns the values of the results. There is an argument for each in the schema.
  std::vector<Value> call(
      const c10::OperatorHandle& op, std::vector<Argument> arguments, std::string description);
  Value call(
      Function function,
      std::vector<Argument> arguments,
      std::string description,
      bool is_kernel = false);
  // A step of compiled code (kernels.h). If it has no result, the value is not used.
  Value call(
      std::function<std::shared_ptr<const TypedCall>(const Step&)> make,
      std::vector<Argument> arguments,
      std::string description);
  // A member of a list of tensors.
  Value item(Value list, int64_t index);
  // The tensor with these strides. NOTE [Recorded strides] in torchlayers/fx/strides.py.
  Value lay_out(Value tensor, std::vector<Argument> strides);
  // A size or a stride of a tensor, for programs that run on tensors of several shapes.
  Value size(Value tensor, int64_t dim);
  Value stride(Value tensor, int64_t dim);
  // The result of one of Python's operators on integers: "add", "floordiv", ...
  Value arithmetic(const std::string& name, Argument left, Argument right);

  // The program that returns these values. The recording is used up.
  std::shared_ptr<const Program> finish(std::vector<Argument> outputs);

 private:
  friend class Program;
  void track();
  void place();

  void expect_tensors(const c10::TypePtr& type, Argument& argument) const;

  size_t num_inputs_;
  size_t num_values_;
  std::vector<bool> are_tensors_; // whether a value certainly is a tensor
  std::vector<Step> steps_;
  std::vector<Argument> outputs_;
};

// May run on several threads at once, and inside itself: the state of a run is in its frame.
class Program {
 public:
  explicit Program(ProgramBuilder&& builder);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Takes the inputs off the stack, which has nothing else, and leaves the outputs there. If only
  // kernels would see the operators, autograd and Python are skipped.
  void run(torch::jit::Stack& stack) const;

  size_t num_inputs() const {
    return num_inputs_;
  }
  size_t num_outputs() const {
    return outputs_.size();
  }
  // The largest number of values that are alive at once.
  size_t num_slots() const {
    return num_slots_;
  }
  const std::vector<Step>& steps() const {
    return steps_;
  }
  const std::vector<Argument>& outputs() const {
    return outputs_;
  }
  // Whether only kernels would see the operators on these inputs.
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
