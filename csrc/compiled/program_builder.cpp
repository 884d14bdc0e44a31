#include <c10/util/SmallVector.h>
#include <c10/util/generic_math.h>

#include <algorithm>

#include "compiled/program.h"
#include "compiled/strides.h"
#include "compiled/unboxed_call.h"
#include "core/args.h"

namespace torchlayers::compiled {
namespace {

template <class Visit>
void visit_values(std::vector<Argument>& arguments, const Visit& visit) {
  for (auto& argument : arguments) {
    if (argument.value) {
      visit(argument);
    }
    visit_values(argument.members, visit);
  }
}

// Hands out slots, returned ones first.
class Slots {
 public:
  Value take() {
    if (free_.empty()) {
      return size_++;
    }
    const Value slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give_back(Value slot) {
    free_.push_back(slot);
  }
  size_t size() const {
    return size_;
  }

 private:
  std::vector<Value> free_;
  size_t size_ = 0;
};

using Arithmetic = int64_t (*)(int64_t, int64_t);

Arithmetic arithmetic_named(const std::string& name) {
  if (name == "add") {
    return [](int64_t a, int64_t b) { return a + b; };
  }
  if (name == "sub") {
    return [](int64_t a, int64_t b) { return a - b; };
  }
  if (name == "mul") {
    return [](int64_t a, int64_t b) { return a * b; };
  }
  if (name == "floordiv") {
    return [](int64_t a, int64_t b) { return c10::div_floor_integer(a, b); };
  }
  if (name == "mod") { // of Python: it has the sign of b
    return [](int64_t a, int64_t b) { return a - b * c10::div_floor_integer(a, b); };
  }
  if (name == "min") {
    return [](int64_t a, int64_t b) { return std::min(a, b); };
  }
  TORCH_CHECK_VALUE(name == "max", "torchlayers: unknown arithmetic '", name, "'");
  return [](int64_t a, int64_t b) { return std::max(a, b); };
}

} // namespace

Argument Argument::of(c10::IValue constant) {
  Argument argument;
  argument.constant = std::move(constant);
  return argument;
}

Argument Argument::of(Value value) {
  Argument argument;
  argument.value = value;
  return argument;
}

Argument Argument::of(std::vector<Argument> members, c10::TypePtr type) {
  Argument argument;
  argument.members = std::move(members);
  argument.element_type = std::move(type);
  return argument;
}

std::vector<Value> ProgramBuilder::call(
    const c10::OperatorHandle& op, std::vector<Argument> arguments, std::string description) {
  TORCH_INTERNAL_ASSERT(arguments.size() == op.schema().arguments().size());
  std::vector<Value> results;
  Step& step = steps_.emplace_back();
  step.op = op;
  step.arguments = std::move(arguments);
  step.description = std::move(description);
  for (size_t i = 0; i < step.arguments.size(); ++i) {
    expect_tensors(op.schema().arguments()[i].type(), step.arguments[i]);
  }
  for (const auto& result : op.schema().returns()) {
    are_tensors_.push_back(result.type()->kind() == c10::TypeKind::TensorType);
    results.push_back(num_values_);
    step.results.emplace_back(num_values_++);
  }
  return results;
}

void ProgramBuilder::expect_tensors(const c10::TypePtr& type, Argument& argument) const {
  if (argument.value) {
    argument.may_be_number =
        !are_tensors_[*argument.value] && type->isSubtypeOf(*c10::OptionalType::ofTensor());
  }
  for (auto& member : argument.members) {
    expect_tensors(argument.element_type, member);
  }
}

Value ProgramBuilder::call(
    Function function, std::vector<Argument> arguments, std::string description, bool is_kernel) {
  Step& step = steps_.emplace_back();
  step.is_kernel = is_kernel;
  step.function = std::move(function);
  step.arguments = std::move(arguments);
  step.description = std::move(description);
  are_tensors_.push_back(false);
  step.results.emplace_back(num_values_);
  return num_values_++;
}

Value ProgramBuilder::call(
    std::function<std::shared_ptr<const TypedCall>(const Step&)> make,
    std::vector<Argument> arguments,
    std::string description) {
  const Value result = call(Function(), std::move(arguments), std::move(description));
  steps_.back().make = std::move(make);
  return result;
}

Value ProgramBuilder::item(Value list, int64_t index) {
  const auto take = [index](torch::jit::Stack& stack) {
    auto& last = stack.back();
    const auto members = last.toListRef();
    const int64_t size = static_cast<int64_t>(members.size());
    const int64_t place = index < 0 ? index + size : index;
    TORCH_CHECK_INDEX(
        place >= 0 && place < size, "list index ", index, " out of range for ", size, " members");
    c10::IValue member = members[place];
    last = std::move(member);
  };
  return call(take, {Argument::of(list)}, "getitem");
}

Value ProgramBuilder::lay_out(Value tensor, std::vector<Argument> strides) {
  const bool is_tensor = are_tensors_[tensor];
  const auto lay_out = [](torch::jit::Stack& stack) {
    c10::SmallVector<int64_t, 5> strides;
    for (size_t i = 1; i < stack.size(); ++i) {
      strides.push_back(stack[i].toInt());
    }
    stack.resize(1);
    if (!stack.back().isTensor()) {
      return;
    }
    const at::Tensor& given = stack.back().toTensor();
    if (given.defined() && given.layout() == at::kStrided && !has_strides(given, strides)) {
      stack.back() = with_strides(given, strides);
    }
  };
  strides.insert(strides.begin(), Argument::of(tensor));
  const Value result = call(lay_out, std::move(strides), "lay_out");
  are_tensors_[result] = is_tensor;
  return result;
}

Value ProgramBuilder::size(Value tensor, int64_t dim) {
  const auto size = [dim](torch::jit::Stack& stack) {
    stack.back() = stack.back().toTensor().size(dim);
  };
  return call(size, {Argument::of(tensor)}, "size");
}

Value ProgramBuilder::stride(Value tensor, int64_t dim) {
  const auto stride = [dim](torch::jit::Stack& stack) {
    stack.back() = stack.back().toTensor().stride(dim);
  };
  return call(stride, {Argument::of(tensor)}, "stride");
}

Value ProgramBuilder::arithmetic(const std::string& name, Argument left, Argument right) {
  const auto compute = arithmetic_named(name);
  const auto function = [compute](torch::jit::Stack& stack) {
    const int64_t right = stack.back().toInt();
    stack.pop_back();
    stack.back() = compute(stack.back().toInt(), right);
  };
  return call(function, {std::move(left), std::move(right)}, name);
}

// Marks the steps that ADInplaceOrView has to see, as in eager code: writes to memory that code
// outside may hold, and views that are returned to the user, with the views in between.
void ProgramBuilder::track() {
  // May share memory with an input or a constant.
  std::vector<bool> is_outside(num_values_, false);
  // Is returned, written to, or has a view that is.
  std::vector<bool> matters(num_values_, false);
  std::fill_n(is_outside.begin(), num_inputs_, true);
  visit_values(outputs_, [&](Argument& output) { matters[*output.value] = true; });

  const auto visit_aliases = [](Step& step, const auto& visit) {
    if (!step.op) {
      for (auto& argument : step.arguments) {
        visit(argument, size_t(0));
      }
      return;
    }
    const Operator& op = Operator::of(*step.op);
    for (size_t i = 0; i < op.num_args; ++i) {
      if (op.aliased_result[i]) {
        visit(step.arguments[i], *op.aliased_result[i]);
      }
    }
  };
  const auto is_from_outside = [&](const Argument& argument) {
    return argument.value ? is_outside[*argument.value] : argument.constant.isTensor();
  };
  for (Step& step : steps_) {
    visit_aliases(step, [&](const Argument& argument, size_t result) {
      if (is_from_outside(argument)) {
        is_outside[*step.results[result]] = true;
      }
    });
  }
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    if (step->op) {
      for (const size_t i : Operator::of(*step->op).written_args) {
        const Argument& written = step->arguments[i];
        if (is_from_outside(written)) {
          step->is_tracked = true;
          if (written.value) {
            matters[*written.value] = true;
          }
        }
      }
    }
    visit_aliases(*step, [&](const Argument& argument, size_t result) {
      if (matters[*step->results[result]]) {
        step->is_tracked = true;
        if (argument.value) {
          matters[*argument.value] = true;
        }
      }
    });
  }
}

// Assigns slots to values: a slot is free again after the last read of its value.
void ProgramBuilder::place() {
  std::vector<Step*> last_reader(num_values_, nullptr);
  for (Step& step : steps_) {
    visit_values(step.arguments, [&](Argument& read) { last_reader[*read.value] = &step; });
  }
  std::vector<bool> is_output(num_values_, false);
  visit_values(outputs_, [&](Argument& read) { is_output[*read.value] = true; });

  Slots slots;
  std::vector<Value> slot_of(num_values_);
  for (Value input = 0; input < num_inputs_; ++input) {
    slot_of[input] = slots.take();
  }
  for (Step& step : steps_) {
    std::vector<Argument*> read;
    visit_values(step.arguments, [&](Argument& argument) { read.push_back(&argument); });
    for (auto argument = read.rbegin(); argument != read.rend(); ++argument) {
      const Value value = *(*argument)->value;
      if (last_reader[value] == &step && !is_output[value]) {
        (*argument)->is_last = true;
        last_reader[value] = nullptr;
        slots.give_back(slot_of[value]);
      }
      (*argument)->value = slot_of[value];
    }
    for (auto& result : step.results) {
      if (last_reader[*result] == nullptr && !is_output[*result]) {
        result.reset();
      } else {
        slot_of[*result] = slots.take();
        result = slot_of[*result];
      }
    }
  }
  visit_values(outputs_, [&](Argument& output) { output.value = slot_of[*output.value]; });
  num_values_ = slots.size();
}

std::shared_ptr<const Program> ProgramBuilder::finish(std::vector<Argument> outputs) {
  outputs_ = std::move(outputs);
  track();
  place();
  for (Step& step : steps_) {
    step.typed = step.make ? step.make(step) : typed_call(step);
    step.is_kernel |= step.typed && step.typed->is_kernel();
  }
  return std::make_shared<const Program>(std::move(*this));
}

} // namespace torchlayers::compiled
