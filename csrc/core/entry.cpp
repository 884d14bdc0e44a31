#include "core/entry.h"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <vector>

#include "core/errors.h"
#include "core/modes.h"
#include "core/stack.h"
#include "core/trace/call_recorder.h"

namespace torchlayers {
namespace {

// The entries of this thread that have not been left, outermost first. They are kept alive here: a
// suspended generator may release one on another thread.
thread_local std::vector<std::shared_ptr<Entry>> open_entries;

} // namespace

int64_t Entry::enter() {
  TORCH_CHECK(layer_ && !is_open_, "torchlayers: this entry has been entered already");
  patched_.emplace();
  modes_outside_ = Modes::of_thread();
  layer_->switch_on();
  try {
    push(layer_);
  } catch (...) {
    layer_->switch_off();
    modes_outside_.set();
    patched_.reset();
    throw;
  }
  is_open_ = true;
  open_entries.push_back(shared_from_this());
  if (C10_UNLIKELY(is_observed())) {
    range_ = std::make_unique<ObservedRange>(ObservedRange::Of::Layer, layer_->name());
  }
  return layer_->level();
}

bool Entry::is_innermost(const Layer& layer) {
  return !open_entries.empty() && open_entries.back()->layer() == &layer;
}

void Entry::leave() {
  TORCH_CHECK(layer_ && is_open_, "torchlayers: this entry has not been entered");
  const bool is_open_here =
      std::ranges::find(open_entries, shared_from_this()) != open_entries.end();
  const bool is_taken_off =
      is_open_here && !is_on_stack(*layer_) && Processing::of(*layer_) == nullptr;
  int64_t left_behind = 0;
  if (is_taken_off) {
    forget(*layer_);
  } else {
    left_behind = pop(*layer_);
  }
  // Entries inside this one that were not left are restored with it, innermost first. They keep
  // their layers, so that leaving them later reports that the layers are gone.
  while (open_entries.back().get() != this) {
    const auto inner = open_entries.back();
    inner->put_back();
  }
  put_back();
  const auto layer = std::move(layer_);
  if (autocast_is_on()) {
    // Autocast caches casts of weights, and the cache holds some of this layer's wrappers.
    at::autocast::clear_cache();
  }
  if (is_taken_off) {
    raise(
        "{} was no longer on the stack when it was left: the stack is {}. A kernel or program "
        "inside it has popped entries of torch.func's stack without pushing them back.",
        layer->name(),
        describe_stack());
  }
  if (left_behind > 0) {
    raise(
        "when {} was left, {} layer(s) entered inside it were still on the stack, and have been "
        "removed. A generator or coroutine that is suspended inside a transform causes this.",
        layer->name(),
        left_behind);
  }
}

void Entry::put_back() {
  patched_.reset();
  range_.reset();
  open_entries.pop_back();
  layer_->switch_off();
  modes_outside_.set();
}

} // namespace torchlayers
