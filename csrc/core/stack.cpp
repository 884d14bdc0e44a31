#include "core/stack.h"

#include <exception>
#include <mutex>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "core/errors.h"

namespace torchlayers {

std::atomic<int> stacks_left_dirty{0};

namespace {

using LifeHandle = std::shared_ptr<bool>;

// Every living layer of ours, on any thread, by its life handle.
class LivingLayers {
 public:
  static LivingLayers& instance() {
    static auto* registry = new LivingLayers(); // outlives threads that end late
    return *registry;
  }
  void add(const LifeHandle& handle, std::shared_ptr<Layer> layer) {
    std::lock_guard<std::mutex> lock(mutex_);
    layers_[handle.get()] = std::move(layer);
  }
  void remove(const LifeHandle& handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    layers_.erase(handle.get());
  }
  std::shared_ptr<Layer> find(const LifeHandle& handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = layers_.find(handle.get());
    return it == layers_.end() ? nullptr : it->second;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const bool*, std::shared_ptr<Layer>> layers_;
};

// What this thread knows of an entry of the mirror. Holding the handle keeps its
// address from being used again while the address is what we go by.
struct Known {
  LifeHandle handle;
  std::shared_ptr<Layer> layer; // null: torch.func's
};

thread_local std::vector<Known> known;
thread_local Processing* innermost = nullptr;
thread_local std::string dirt; // what was wrong with it. NOTE [A stack left dirty]

const LifeHandle& handle_of(const at::functorch::DynamicLayer& entry) {
  return entry.interpreter().is_alive_ptr();
}

const Known& remember(Known entry, size_t place) {
  // What lies above this place is gone from the mirror or hidden by a WithoutTop.
  // Layers hidden so are in use by pointer alone: while an operator is under way,
  // drop torch.func's only.
  for (size_t i = known.size(); i-- > place;) {
    if (innermost == nullptr || known[i].layer == nullptr) {
      known.erase(known.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  known.push_back(std::move(entry));
  return known.back();
}

// Finds the entry at this place. `known` runs parallel to the mirror except where
// the mirror was changed behind our back; then the entry is looked for everywhere.
const Known& know(const at::functorch::DynamicLayer& entry, size_t place) {
  const auto& handle = handle_of(entry);
  if (place < known.size() && known[place].handle == handle) {
    return known[place];
  }
  for (const auto& candidate : known) {
    if (candidate.handle == handle) {
      return candidate;
    }
  }
  return remember({handle, LivingLayers::instance().find(handle)}, place);
}

void forget(const LifeHandle& handle) {
  LivingLayers::instance().remove(handle);
  for (size_t i = known.size(); i-- > 0;) {
    if (known[i].handle == handle) {
      known.erase(known.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

// Its place, which is its level's as a rule. NOTE [A stack left dirty].
std::optional<size_t> find(const Layer& layer) {
  const auto& entries = mirror();
  for (size_t i = entries.size(); i-- > 0;) {
    if (know(entries[i], i).layer.get() == &layer) {
      return i;
    }
  }
  return std::nullopt;
}

bool any_ours(const std::vector<at::functorch::DynamicLayer>& entries) {
  for (size_t i = entries.size(); i-- > 0;) {
    if (know(entries[i], i).layer) {
      return true;
    }
  }
  return false;
}

void include_our_keys(bool included) {
  auto& keys = thread_keys();
  keys.set_included(included ? keys.included() | kOurKeys : keys.included() - kOurKeys);
}

std::string describe(const std::vector<at::functorch::DynamicLayer>& entries) {
  std::ostringstream out;
  out << "[";
  for (size_t i = 0; i < entries.size(); ++i) {
    out << (i ? " " : "");
    if (const Layer* layer = know(entries[i], i).layer.get()) {
      out << *layer;
    } else {
      out << i + 1 << ":torch.func";
    }
  }
  out << "]";
  return out.str();
}

// What was wrong with this thread's stack, if that has not been said yet; it has been then.
std::string take_dirt() {
  stacks_left_dirty -= dirt.empty() ? 0 : 1;
  return std::exchange(dirt, {});
}

[[noreturn]] void raise_out_of_place(const Layer& layer) {
  const std::string found = take_dirt();
  raise(
      "{} is not at its level any more: the stack is {}{}",
      layer.name(),
      describe_stack(),
      found.empty() ? ". A kernel or program has popped torch.func's stack and has not pushed back "
                      "what it popped, or the other way round."
                    : ". A kernel" + found + ".");
}

} // namespace

void clean_up(size_t depth) {
  const std::string found = describe(mirror());
  const bool lacks = mirror().size() < depth;
  while (mirror().size() > depth) {
    const auto entry = at::functorch::popDynamicLayerAndDeleteMetadata();
    forget(handle_of(entry));
  }
  if (std::uncaught_exceptions() > 0) {
    return; // which tells more
  }
  std::ostringstream words;
  words << " left the stack below it as " << found
        << (lacks ? ", and took off what was there" : ", and found it as " + describe(mirror()));
  stacks_left_dirty += dirt.empty() ? 1 : 0;
  dirt = words.str();
}

void refuse_dirt_of(const Operator& op) {
  if (dirt.empty()) {
    return; // another thread's
  }
  raise(
      "a kernel of {}{}. What enters a transform, or pushes to torch.func's stack, has to leave "
      "it, or to pop that, before it returns, and no more than that.",
      op.name(),
      take_dirt());
}

Layer* top_layer() {
  const auto& entries = at::functorch::getDynamicLayerStack();
  if (entries.empty()) {
    return nullptr;
  }
  Layer* layer = know(entries.back(), entries.size() - 1).layer.get();
  if (C10_UNLIKELY(layer != nullptr && layer->level() != static_cast<int64_t>(entries.size()))) {
    raise_out_of_place(*layer);
  }
  return layer;
}

Layer& entered_layer() {
  Layer* layer = top_layer();
  if (layer == nullptr) {
    raise(
        "a transform's layer is not on top of the stack any more, which is {}: its function has "
        "entered or left layers of torch.func's and has not undone that.",
        describe_stack());
  }
  return *layer;
}

Layer* layer_at(int64_t level) {
  const auto& entries = mirror();
  const auto place = static_cast<size_t>(level - 1);
  return place < entries.size() ? know(entries[place], place).layer.get() : nullptr;
}

bool any_layer() {
  return any_ours(mirror());
}

void push(const std::shared_ptr<Layer>& layer) {
  if (mirror().empty()) {
    take_dirt(); // of a call that is over, and that an error ended which came first
  } else {
    top_layer(); // which has to be at its level
  }
  const auto level = static_cast<int64_t>(mirror().size()) + 1;
  auto entry = layer->mirrored(level);
  entry.interpreter().set_is_alive(true);
  LifeHandle handle = handle_of(entry);
  layer->begin(level, handle.get());
  LivingLayers::instance().add(handle, layer);
  at::functorch::pushDynamicLayer(std::move(entry));
  include_our_keys(true);
  remember({std::move(handle), layer}, mirror().size() - 1);
}

int64_t pop(const Layer& layer) {
  const auto found = find(layer);
  TORCH_CHECK(
      found,
      "torchlayers: ",
      layer.name(),
      " is left on a thread whose stack is ",
      describe_stack(),
      ", which does not hold it. A layer has to be left on the thread that entered it, before the "
      "layers around it: do not suspend (yield, await) inside a transformed function and resume it "
      "elsewhere.");
  int64_t left_behind = -1;
  while (mirror().size() > *found) {
    auto entry = at::functorch::popDynamicLayerAndDeleteMetadata();
    forget(handle_of(entry));
    ++left_behind;
  }
  include_our_keys(any_ours(mirror()));
  return left_behind;
}

bool is_on_stack(const Layer& layer) {
  return find(layer).has_value();
}

void forget(const Layer& layer) {
  for (size_t i = known.size(); i-- > 0;) {
    if (known[i].layer.get() == &layer) {
      const LifeHandle handle = known[i].handle;
      *handle = false;
      forget(handle);
      break;
    }
  }
  include_our_keys(any_ours(mirror()));
}

std::vector<std::shared_ptr<Layer>> layers_on_stack() {
  std::vector<std::shared_ptr<Layer>> layers;
  const auto& entries = mirror();
  for (size_t i = 0; i < entries.size(); ++i) {
    layers.push_back(know(entries[i], i).layer);
  }
  return layers;
}

std::string describe_stack() {
  return describe(mirror());
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

void allow_only(DispatchKeySet keys, DispatchKeySet include) {
  auto& now = thread_keys();
  now.set_included(
      (now.included() | include | DispatchKeySet(kBack)) - DispatchKeySet(kFront) - kTorchFuncKeys);
  now.set_excluded((now.excluded() | kBetween) - keys);
}

} // namespace torchlayers
