#include "compiled/program.h"

#include <ATen/ScalarOps.h>

#include <algorithm>

#include "compiled/interruptible.h"
#include "core/args.h"
#include "core/errors.h"
#include "core/keys.h"
#include "core/skip_autograd.h"
#include "core/trace/call_recorder.h"

namespace torchlayers::compiled {
namespace {

c10::IValue as_tensor(const c10::IValue& value) {
  if (!value.isScalar() && !value.isSymInt() && !value.isSymFloat()) {
    return value;
  }
  at::Tensor number = c10::scalar_to_tensor(value.toScalar());
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return number;
}

c10::IValue make(const Argument& argument, Frame& frame) {
  if (argument.value) {
    if (C10_UNLIKELY(argument.may_be_number)) {
      return as_tensor(frame.values[*argument.value]);
    }
    c10::IValue& value = frame.values[*argument.value];
    return argument.is_last ? std::move(value) : value;
  }
  if (!argument.is_list()) {
    return argument.constant;
  }
  c10::impl::GenericList list(argument.element_type);
  list.reserve(argument.members.size());
  for (const auto& member : argument.members) {
    list.push_back(make(member, frame));
  }
  return list;
}

// A value that one step reads twice is released at the last read, so the order matters.
void push(const std::vector<Argument>& arguments, Frame& frame, torch::jit::Stack& stack) {
  for (const auto& argument : arguments) {
    stack.push_back(make(argument, frame));
  }
}

// While it lives, operators skip autocast, whose conversions are in the captured graph, and, if
// `below`, autograd: they reach the kernels of their devices.
class WithKeys {
 public:
  explicit WithKeys(bool below) : before_(thread_keys()) {
    const auto excluded = before_.excluded() | kAutocastKeys;
    keys_ = excluded | (below ? c10::autograd_dispatch_keyset_with_ADInplaceOrView : kNone);
    tracked_keys_ = excluded | (below ? c10::autograd_dispatch_keyset : kNone);
    thread_keys().set_excluded(keys_);
  }
  ~WithKeys() {
    thread_keys() = before_;
  }
  WithKeys(const WithKeys&) = delete;
  WithKeys& operator=(const WithKeys&) = delete;

  void run(const Step& step, Frame& frame) const {
    if (C10_UNLIKELY(step.is_tracked)) {
      thread_keys().set_excluded(tracked_keys_);
      step.run(frame);
      thread_keys().set_excluded(keys_);
    } else {
      step.run(frame);
    }
  }

 private:
  static constexpr DispatchKeySet kNone{};
  c10::impl::PODLocalDispatchKeySet before_;
  DispatchKeySet keys_, tracked_keys_;
};

// Borrows a frame for one run, and empties it at the end.
class Borrowed {
 public:
  Borrowed(std::atomic<Frame*>& spare, size_t size)
      : spare_(spare), frame_(spare.exchange(nullptr, std::memory_order_acquire)) {
    if (frame_ == nullptr) {
      frame_ = new Frame(size);
    }
  }
  ~Borrowed() {
    for (auto& value : frame_->values) {
      value = c10::IValue();
    }
    frame_->stack.clear();
    delete spare_.exchange(frame_, std::memory_order_release);
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  Frame& operator*() const {
    return *frame_;
  }

 private:
  std::atomic<Frame*>& spare_;
  Frame* frame_;
};

bool are_plain(const torch::jit::Stack& values) {
  bool are = true;
  visit_tensors(
      values, values.size(), [&](const at::Tensor& tensor) { are = are && is_plain(tensor); });
  return are;
}

void collect_tensors(const std::vector<Argument>& arguments, torch::jit::Stack& tensors) {
  for (const auto& argument : arguments) {
    visit_tensors_of(
        argument.constant, [&](const at::Tensor& tensor) { tensors.emplace_back(tensor); });
    collect_tensors(argument.members, tensors);
  }
}

} // namespace

void Step::run(Frame& frame) const {
  if (typed) {
    typed->run(frame);
    return;
  }
  auto& stack = frame.stack;
  push(arguments, frame, stack);
  if (op) {
    op->callBoxed(stack);
  } else {
    function(stack);
  }
  TORCH_INTERNAL_ASSERT(stack.size() == results.size(), description);
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i]) {
      frame.values[*results[i]] = std::move(stack[i]);
    }
  }
  stack.clear();
}

Program::Program(ProgramBuilder&& builder)
    : num_inputs_(builder.num_inputs_),
      num_slots_(builder.num_values_),
      steps_(std::move(builder.steps_)),
      outputs_(std::move(builder.outputs_)) {
  for (auto& step : steps_) {
    collect_tensors(step.arguments, constants_);
  }
}

Program::~Program() {
  delete spare_.load();
}

bool Program::may_pass_by(const torch::jit::Stack& inputs) const {
  return nothing_is_below() && are_plain(inputs) && are_plain(constants_);
}

void Program::run_steps(Frame& frame, bool below) const {
  const WithKeys keys(below);
  Interruptible interruptible;
  const Step* step = steps_.data();
  const Step* const end = step + steps_.size();
  const bool observed = is_observed();
  try {
    for (; step != end; ++step) {
      if (C10_UNLIKELY(observed && step->is_kernel)) {
        const ObservedRange range(ObservedRange::Of::Kernel, step->description);
        keys.run(*step, frame);
      } else {
        keys.run(*step, frame);
      }
      interruptible.look();
    }
  } catch (c10::Error& error) {
    error.add_context("torchlayers: while replaying " + step->description);
    throw;
  } catch (LayerError& error) {
    error.add_context("torchlayers: while replaying " + step->description);
    throw;
  }
}

void Program::run(torch::jit::Stack& stack) const {
  TORCH_CHECK(
      stack.size() == num_inputs_,
      "torchlayers: the captured graph takes ",
      num_inputs_,
      " inputs, got ",
      stack.size());
  const bool below = may_pass_by(stack);
  const Borrowed borrowed(spare_, num_slots_);
  Frame& frame = *borrowed;
  std::move(stack.begin(), stack.end(), frame.values.begin());
  stack.clear();
  run_steps(frame, below);
  push(outputs_, frame, stack);
}

} // namespace torchlayers::compiled
