#include "stack.h"

#include <mutex>
#include <sstream>
#include <unordered_map>

namespace torchlayers {
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

const LifeHandle& handle_of(const at::functorch::DynamicLayer& entry) {
  return entry.interpreter().is_alive_ptr();
}

const Known& remember(Known entry, size_t place) {
  // What lies above this place is gone from the mirror or hidden by a WithoutTop.
  // Layers hidden so are in use by plain pointer: while an operator is under way,
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

} // namespace

Layer* top_layer() {
  const auto& entries = at::functorch::getDynamicLayerStack();
  if (entries.empty()) {
    return nullptr;
  }
  return know(entries.back(), entries.size() - 1).layer.get();
}

bool any_layer() {
  return any_ours(mirror());
}

void push(const std::shared_ptr<Layer>& layer) {
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
  const auto place = static_cast<size_t>(layer.level() - 1);
  TORCH_CHECK(
      place < mirror().size() && know(mirror()[place], place).layer.get() == &layer,
      "torchlayers: ",
      layer.name(),
      " is left on a thread whose stack is ",
      describe_stack(),
      ", which does not hold it. A layer has to be left on the thread that entered it, before the "
      "layers around it: do not suspend (yield, await) inside a transformed function and resume it "
      "elsewhere.");
  int64_t left_behind = -1;
  while (mirror().size() > place) {
    auto entry = at::functorch::popDynamicLayerAndDeleteMetadata();
    forget(handle_of(entry));
    ++left_behind;
  }
  include_our_keys(any_ours(mirror()));
  return left_behind;
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
  std::ostringstream out;
  out << "[";
  const auto layers = layers_on_stack();
  for (size_t i = 0; i < layers.size(); ++i) {
    out << (i ? " " : "");
    if (layers[i]) {
      out << *layers[i];
    } else {
      out << i + 1 << ":torch.func";
    }
  }
  out << "]";
  return out.str();
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

WithoutTop::WithoutTop(const Layer& layer)
    : entry_(std::move(mirror().back())), keys_inside_(thread_keys()) {
  // The guard's own frame is the only place the entry lives meanwhile.
  mirror().pop_back();
  const auto* processing = Processing::of(layer);
  TORCH_INTERNAL_ASSERT(processing != nullptr);
  auto keys = processing->keys_outside();
  // NOTE [Autocast happens once]
  keys.set_excluded(keys.excluded() | kAutocastKeys);
  const auto& below = mirror();
  if (below.empty()) {
    keys.set_included(keys.included() - kOurKeys - kTorchFuncKeys);
  } else if (!any_ours(below)) {
    keys.set_included(keys.included() - kOurKeys);
  }
  thread_keys() = keys;
}

WithoutTop::~WithoutTop() {
  mirror().push_back(std::move(entry_));
  thread_keys() = keys_inside_;
}

} // namespace torchlayers
