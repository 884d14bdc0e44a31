#include "core/trace/call_recorder.h"

#include <ATen/core/Tensor.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/TensorWrapper.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "core/callbacks.h"
#include "core/errors.h"
#include "core/stack.h"
#include "core/trace/trace.h"

namespace torchlayers {
namespace {

constexpr std::string_view kLayerRange = "torchlayers::";
constexpr std::string_view kCompiledRange = "torchlayers::compiled ";
constexpr std::string_view kKernelRange = "torchlayers::kernel ";

// The calls that have not ended on this thread, outermost first.
thread_local std::vector<int64_t> open_calls;

// Which operator a call is part of.
enum class Around { Nothing, Operator, Kernel };

struct Recorder {
  std::mutex mutex;
  std::deque<RecordedCall> calls;
  int64_t first = 0; // the number of calls.front(); numbers are never used again
  std::map<int64_t, std::pair<int64_t, size_t>> active; // first number and limit, by who started
  int64_t started = 0;
  int64_t oldest = 0; // of the first numbers
  size_t limit = 0;
  at::CallbackHandle observer = at::INVALID_CALLBACK_HANDLE;

  int64_t next() const {
    return first + static_cast<int64_t>(calls.size());
  }
  // Null if it has been dropped.
  RecordedCall* find(int64_t number) {
    return number >= first && number < next() ? &calls[static_cast<size_t>(number - first)]
                                              : nullptr;
  }
  int64_t add(RecordedCall&& call) {
    calls.push_back(std::move(call));
    if (calls.size() > limit) {
      calls.pop_front();
      ++first;
    }
    return next() - 1;
  }
  // The innermost open call on this thread that began while anybody recorded, or -1.
  int64_t innermost() const {
    return open_calls.empty() || open_calls.back() < oldest ? -1 : open_calls.back();
  }
  Around innermost_kind() {
    const std::lock_guard<std::mutex> lock(mutex);
    const int64_t number = innermost();
    const RecordedCall* call = find(number);
    if (call == nullptr) {
      return number < 0 ? Around::Nothing : Around::Operator;
    }
    if (call->kind != RecordedCall::Kind::Operator) {
      return Around::Nothing;
    }
    return call->is_kernel ? Around::Kernel : Around::Operator;
  }
  void active_has_changed() {
    limit = 0;
    oldest = next();
    for (const auto& [_, since] : active) {
      oldest = std::min(oldest, since.first);
      limit = std::max(limit, since.second);
    }
  }
};

Recorder& recorder() {
  static auto* instance = new Recorder(); // never freed: engine threads may outlive statics
  return *instance;
}

int64_t now() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
}

template <class Tensors>
void add(Tensors& to, const at::Tensor& tensor) {
  if (!tensor.defined() || to.size() == 16) { // of long lists, sixteen show what they are
    return;
  }
  RecordedTensor seen{tensor.scalar_type(), {}, 0, std::nullopt};
  if (!tensor.is_nested() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    seen.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  }
  if (const auto* batched = at::functorch::maybeGetBatchedImpl(tensor)) {
    seen.level = batched->level();
    seen.batch_dim = batched->bdim();
  } else if (const auto* wrapper = at::functorch::maybeGetTensorWrapper(tensor)) {
    seen.level = wrapper->level().value_or(0);
  }
  to.push_back(std::move(seen));
}

template <class Tensors>
void add(Tensors& to, const c10::IValue& value) {
  if (value.isTensor()) {
    add(to, value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      add(to, element);
    }
  }
}

// A boxed call tells observers of the whole stack, which ends with what is the operator's.
c10::ArrayRef<c10::IValue> last_of(c10::ArrayRef<c10::IValue> stack, size_t count) {
  return stack.slice(stack.size() - std::min(count, stack.size()));
}

struct Span : at::ObserverContext {
  explicit Span(int64_t number) : number(number), exceptions(std::uncaught_exceptions()) {}
  int64_t number;
  int exceptions;
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  auto& all = recorder();
  const auto around = all.innermost_kind();
  const bool is_below_layers = mirror().empty();
  if (is_below_layers && around == Around::Kernel) {
    return nullptr; // what a kernel calls is its own business
  }
  RecordedCall call;
  call.is_kernel = is_below_layers;
  call.thread = static_cast<int64_t>(at::RecordFunction::currentThreadId());
  const std::string_view name = function.name();
  if (const auto op = function.operator_name()) {
    call.kind = RecordedCall::Kind::Operator;
    call.name = op->overload_name.empty() ? op->name : op->name + "." + op->overload_name;
    for (const c10::IValue& input : last_of(function.inputs(), function.num_inputs())) {
      add(call.inputs, input);
    }
  } else if (name.starts_with(kCompiledRange)) {
    call.kind = RecordedCall::Kind::Compiled;
    call.name = name.substr(kCompiledRange.size());
  } else if (name.starts_with(kKernelRange)) {
    call.kind = RecordedCall::Kind::Operator;
    call.name = "inductor::" + std::string(name.substr(kKernelRange.size()));
  } else if (const Layer* layer = name.starts_with(kLayerRange) ? top_layer() : nullptr) {
    call.kind = RecordedCall::Kind::Layer;
    call.name = layer->kind();
    call.level = layer->level();
    if (const c10::SymInt* samples = layer->batch_size()) {
      call.samples = samples->maybe_as_int().value_or(-1);
    }
  } else {
    call.kind = RecordedCall::Kind::Range;
    call.name = name;
  }
  if (around == Around::Nothing) {
    call.line = callbacks.user_line(); // takes the GIL, so without the lock
  }
  const std::lock_guard<std::mutex> lock(all.mutex);
  call.parent = all.innermost();
  call.begin = now();
  const int64_t number = all.add(std::move(call));
  open_calls.push_back(number);
  return std::make_unique<Span>(number);
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr) {
    return;
  }
  const int64_t time = now();
  const auto& span = static_cast<const Span&>(*context);
  // A range may end on another thread, or after ranges that it contains.
  const auto open = std::ranges::find(open_calls, span.number);
  open_calls.erase(open, open_calls.end());
  auto& all = recorder();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (RecordedCall* call = all.find(span.number)) {
    call->end = time;
    call->has_raised = std::uncaught_exceptions() > span.exceptions;
    for (const c10::IValue& output : last_of(function.outputs(), function.num_outputs())) {
      add(call->outputs, output);
    }
  }
}

} // namespace

int64_t start_recording(int64_t limit) {
  if (limit < 1) {
    raise("trace's limit is how many calls it keeps, so it must be at least 1, not {}.", limit);
  }
  auto& all = recorder();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.active.empty()) {
    all.observer = at::addGlobalCallback(
        at::RecordFunctionCallback(&begin, &end)
            .needsInputs(true)
            .needsOutputs(true)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}));
    trace_for_recorder(true);
  }
  const int64_t started = ++all.started;
  all.active[started] = {all.next(), static_cast<size_t>(limit)};
  all.active_has_changed();
  return started;
}

Recording stop_recording(int64_t started) {
  auto& all = recorder();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.active.find(started);
  TORCH_CHECK(found != all.active.end(), "torchlayers: this trace has ended already");
  const auto [since, limit] = found->second;
  const auto kept = std::max({since, all.first, all.next() - static_cast<int64_t>(limit)});
  Recording recording{
      kept,
      {all.calls.begin() + static_cast<std::ptrdiff_t>(kept - all.first), all.calls.end()},
      kept - since};
  all.active.erase(found);
  all.active_has_changed();
  if (all.active.empty()) {
    at::removeCallback(all.observer);
    trace_for_recorder(false);
    all.first = all.next();
    all.calls.clear();
  }
  return recording;
}

bool is_unrecorded(const std::string& op) {
  auto& all = recorder();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.active.empty()) {
    return false;
  }
  const int64_t number = all.innermost();
  const RecordedCall* call = all.find(number);
  return number < 0 || (call != nullptr && call->name != op); // null: it has been dropped
}

void record_step(const char* step, const std::string& op, const std::string& layer, int64_t level) {
  auto& all = recorder();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.active.empty()) {
    return;
  }
  RecordedCall* call = open_calls.empty() ? nullptr : all.find(open_calls.back());
  if (call == nullptr || call->name != op) { // torch tells observers of nearly all calls
    RecordedCall moment;
    moment.kind = RecordedCall::Kind::Operator;
    moment.name = op;
    moment.thread = static_cast<int64_t>(at::RecordFunction::currentThreadId());
    moment.parent = all.innermost();
    moment.begin = moment.end = now();
    call = all.find(all.add(std::move(moment)));
  }
  call->steps.push_back({step, layer, level});
}

namespace {

template <class Change>
void change_innermost_compiled(const Change& change) {
  auto& all = recorder();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (auto number = open_calls.rbegin(); number != open_calls.rend(); ++number) {
    RecordedCall* call = all.find(*number);
    if (call != nullptr && call->kind == RecordedCall::Kind::Compiled) {
      change(*call);
      return;
    }
  }
}

} // namespace

void record_capture() {
  change_innermost_compiled([](RecordedCall& call) { call.is_captured = true; });
}

void record_run(int64_t run) {
  change_innermost_compiled([run](RecordedCall& call) { call.run = run; });
}

ObservedRange::ObservedRange(Of what, const std::string& name)
    : range_(at::RecordScope::USER_SCOPE) {
  const auto prefix = what == Of::Layer      ? kLayerRange
                      : what == Of::Compiled ? kCompiledRange
                                             : kKernelRange;
  range_.before(std::string(prefix) + name);
}

} // namespace torchlayers
