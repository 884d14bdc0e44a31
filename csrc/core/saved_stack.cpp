#include "core/saved_stack.h"

#include <algorithm>

#include "core/skip_autograd.h"
#include "core/stack.h"

namespace torchlayers {
namespace {

// The layer of this level that is being processed, if it was entered after the top of `below`.
const Layer* processed_at(int64_t level, const StackCopy& below) {
  const Layer* under = below.empty() ? nullptr : owner_of(below.back());
  const Layer* found = nullptr;
  Processing::visit_all([&](const Layer& layer) {
    found = found == nullptr && layer.level() == level ? &layer : found;
  });
  const bool is_above = found != nullptr && (under == nullptr || under->number() < found->number());
  return is_above && *found->life() ? found : nullptr;
}

} // namespace

std::shared_ptr<const StackCopy> to_run_on_later(StackCopy stack) {
  struct Retained {
    StackCopy stack;
    std::vector<std::shared_ptr<void>> objects;
  };
  const auto retained = std::make_shared<Retained>();
  retained->stack = std::move(stack);
  for (const auto& entry : retained->stack) {
    const Layer* layer = owner_of(entry);
    if (auto object = layer != nullptr ? layer->object_in_python() : nullptr) {
      retained->objects.push_back(std::move(object));
    }
  }
  return {retained, &retained->stack};
}

StackCopy whole_stack() {
  StackCopy stack = mirror();
  while (const Layer* layer = processed_at(static_cast<int64_t>(stack.size()) + 1, stack)) {
    stack.push_back(entry_of(*layer));
  }
  return stack;
}

OnSavedStack::OnSavedStack(const StackCopy& stack, bool records)
    : copy_(stack),
      stack_outside_(std::move(mirror())),
      keys_outside_(thread_keys()),
      modes_outside_(Modes::of_thread()) {
  mirror() = copy_;
  const size_t hooks_around = saved_hooks_on();
  for (const auto& entry : copy_) {
    bool& is_alive = *entry.interpreter().is_alive_ptr();
    Changed changed{owner_of(entry), &is_alive, is_alive, 0, 0};
    is_alive = true;
    if (changed.layer != nullptr) {
      changed.backwards = changed.layer->leave_backward();
      changed.hooks_around = changed.layer->hooks_around();
      changed.layer->set_hooks_around(hooks_around);
      if (!changed.was_alive) {
        changed.layer->resume();
      }
    }
    changed_.push_back(changed);
  }
  auto& keys = thread_keys();
  const auto without = keys.included() - kOurKeys - kTorchFuncKeys;
  keys.set_included(
      copy_.empty() ? without
      : any_layer() ? without | kOurKeys | kTorchFuncKeys
                    : without | kTorchFuncKeys);
  Modes{records, copy_.empty() ? modes_outside_.forward_grad : true}.set();
}

OnSavedStack::~OnSavedStack() {
  for (auto changed = changed_.rbegin(); changed != changed_.rend(); ++changed) {
    if (changed->layer != nullptr) {
      if (!changed->was_alive) {
        changed->layer->suspend();
      }
      changed->layer->return_to_backward(changed->backwards);
      changed->layer->set_hooks_around(changed->hooks_around);
    }
    *changed->is_alive = changed->was_alive;
  }
  mirror() = std::move(stack_outside_);
  thread_keys() = keys_outside_;
  modes_outside_.set();
}

BelowLevel::BelowLevel(int64_t level) : keys_(thread_keys()) {
  const Layer* layer = top_layer();
  if (const auto* processing = layer != nullptr ? Processing::of(*layer) : nullptr) {
    thread_keys() = processing->keys_outside();
  }
  const auto first = mirror().begin();
  const auto count = std::clamp<int64_t>(level - 1, 0, static_cast<int64_t>(mirror().size()));
  below_.emplace(StackCopy(first, first + count), /*records=*/true);
}

BelowLevel::~BelowLevel() {
  below_.reset();
  thread_keys() = keys_;
}

} // namespace torchlayers
