#include "core/stack.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <sstream>
#include <utility>

#include "core/errors.h"

namespace torchlayers {

std::atomic<int> stacks_left_dirty{0};

namespace {

using at::functorch::DynamicLayer;
using at::functorch::Interpreter;

thread_local Processing* innermost = nullptr;
thread_local std::string dirt; // what was wrong with the stack. NOTE [A stack left dirty]

// The deleter of a life handle that is a layer's own flag: identifies the layer, and keeps it alive
// as long as the handle.
struct OfLayer {
  std::shared_ptr<Layer> layer;
  void operator()(bool*) const {}
};

// An entry's life handle is private in torch; an explicit instantiation may name it.
template <auto Handle>
struct RevealEntryLife {
  friend std::shared_ptr<bool>& life_of(Interpreter& interpreter) {
    return interpreter.*Handle;
  }
};
template struct RevealEntryLife<&Interpreter::is_alive_>;
std::shared_ptr<bool>& life_of(Interpreter& interpreter);

// The living layer that an entry belongs to; null for torch.func's.
Layer* layer_of(const DynamicLayer& entry) {
  return entry.interpreter().is_alive() ? owner_of(entry) : nullptr;
}

// The index of its entry, which normally is its level - 1. NOTE [A stack left dirty].
std::optional<size_t> find(const Layer& layer) {
  const auto& entries = mirror();
  for (size_t i = entries.size(); i-- > 0;) {
    if (layer_of(entries[i]) == &layer) {
      return i;
    }
  }
  return std::nullopt;
}

void include_our_keys(bool included) {
  auto& keys = thread_keys();
  keys.set_included(included ? keys.included() | kOurKeys : keys.included() - kOurKeys);
}

} // namespace

Layer* owner_of(const DynamicLayer& entry) {
  const auto* of = std::get_deleter<OfLayer>(entry.interpreter().is_alive_ptr());
  return of != nullptr ? of->layer.get() : nullptr;
}

DynamicLayer entry_of(const Layer& layer) {
  auto entry = layer.mirrored(layer.level());
  const auto keeper = std::const_pointer_cast<Layer>(layer.shared_from_this());
  life_of(entry.interpreter()) =
      std::shared_ptr<bool>(const_cast<bool*>(layer.life()), OfLayer{keeper});
  return entry;
}

std::string describe_stack() {
  std::ostringstream out;
  out << "[";
  const auto& entries = mirror();
  for (size_t i = 0; i < entries.size(); ++i) {
    out << (i ? " " : "");
    if (const Layer* layer = layer_of(entries[i])) {
      out << *layer;
    } else {
      out << i + 1 << ":torch.func";
    }
  }
  out << "]";
  return out.str();
}

namespace {

// Returns what was wrong with this thread's stack if not reported yet, and marks it as reported.
std::string take_dirt() {
  stacks_left_dirty -= dirt.empty() ? 0 : 1;
  return std::exchange(dirt, {});
}

[[noreturn]] void raise_out_of_place(const Layer& layer) {
  const std::string found = take_dirt();
  raise(
      "{} is no longer at its level: the stack is {}{}",
      layer.name(),
      describe_stack(),
      found.empty() ? ". A kernel or program has popped entries of torch.func's stack without "
                      "pushing them back, or pushed entries without popping them."
                    : ". A kernel" + found + ".");
}

} // namespace

void clean_up(size_t depth) {
  const std::string found = describe_stack();
  const bool lacks = mirror().size() < depth;
  while (mirror().size() > depth) {
    at::functorch::popDynamicLayerAndDeleteMetadata();
  }
  if (std::uncaught_exceptions() > 0) {
    return; // the exception tells more
  }
  std::ostringstream words;
  words << " changed the stack below it "
        << (lacks ? "to " + found + ", and popped entries that were there before"
                  : "from " + describe_stack() + " to " + found);
  stacks_left_dirty += dirt.empty() ? 1 : 0;
  dirt = words.str();
}

void refuse_dirt_of(const Operator& op) {
  if (dirt.empty()) {
    return; // another thread's
  }
  raise(
      "a kernel of {}{}. Code that enters a transform must leave it before it returns, and code "
      "that pushes to torch.func's stack must pop exactly what it pushed.",
      op.name(),
      take_dirt());
}

Layer* top_layer() {
  const auto& entries = at::functorch::getDynamicLayerStack();
  if (entries.empty()) {
    return nullptr;
  }
  Layer* layer = layer_of(entries.back());
  if (C10_UNLIKELY(layer != nullptr && layer->level() != static_cast<int64_t>(entries.size()))) {
    raise_out_of_place(*layer);
  }
  return layer;
}

Layer& entered_layer() {
  Layer* layer = top_layer();
  if (layer == nullptr) {
    raise(
        "a transform's layer is no longer on top of the stack, which is {}: its function has "
        "pushed or popped layers of torch.func's stack without undoing it.",
        describe_stack());
  }
  return *layer;
}

Layer* layer_at(int64_t level) {
  const auto& entries = mirror();
  const auto place = static_cast<size_t>(level - 1);
  return place < entries.size() ? layer_of(entries[place]) : nullptr;
}

bool any_layer() {
  return std::ranges::any_of(mirror(), &layer_of);
}

void push(const std::shared_ptr<Layer>& layer) {
  if (mirror().empty()) {
    take_dirt(); // left by a call that another error has ended before
  } else {
    top_layer(); // which has to be at its level
  }
  const auto level = static_cast<int64_t>(mirror().size()) + 1;
  auto entry = layer->mirrored(level);
  life_of(entry.interpreter()) = std::shared_ptr<bool>(layer->begin(level), OfLayer{layer});
  at::functorch::pushDynamicLayer(std::move(entry));
  include_our_keys(true);
}

int64_t pop(const Layer& layer) {
  const auto found = find(layer);
  if (!found) {
    raise(
        "{} is being left on a thread whose stack, {}, does not contain it. A layer must be left "
        "on the thread that entered it, and before the layers around it: do not suspend (yield, "
        "await) inside a transformed function and resume it elsewhere.",
        layer.name(),
        describe_stack());
  }
  int64_t left_behind = -1;
  while (mirror().size() > *found) {
    at::functorch::popDynamicLayerAndDeleteMetadata();
    ++left_behind;
  }
  include_our_keys(any_layer());
  return left_behind;
}

bool is_on_stack(const Layer& layer) {
  return find(layer).has_value();
}

void forget(Layer& layer) {
  layer.end();
  include_our_keys(any_layer());
}

std::vector<Layer*> layers_on_stack() {
  std::vector<Layer*> layers;
  std::ranges::transform(mirror(), std::back_inserter(layers), &layer_of);
  return layers;
}

Processing::Processing(Layer& layer)
    : layer_(layer), keys_(thread_keys()), modes_(Modes::of_thread()), outer_(innermost) {
  innermost = this;
}

Processing::~Processing() {
  innermost = outer_;
  thread_keys() = keys_;
}

const Processing* Processing::of(const Layer& layer) {
  const Processing* processing = innermost;
  while (processing != nullptr && &processing->layer_ != &layer) {
    processing = processing->outer_;
  }
  return processing;
}

void Processing::visit_all(c10::function_ref<void(const Layer&)> visit) {
  for (const Processing* processing = innermost; processing != nullptr;
       processing = processing->outer_) {
    visit(processing->layer_);
  }
}

void allow_only(DispatchKeySet keys, DispatchKeySet include) {
  auto& now = thread_keys();
  now.set_included(
      (now.included() | include | DispatchKeySet(kBack)) - DispatchKeySet(kFront) - kTorchFuncKeys);
  now.set_excluded((now.excluded() | kBetween) - keys);
}

} // namespace torchlayers
