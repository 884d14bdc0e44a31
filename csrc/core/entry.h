// Entry: the only way to enter a layer, and the only way to leave it.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "core/layer.h"
#include "core/modes.h"
#include "core/patches.h"
#include "core/trace/call_recorder.h"

namespace torchlayers {

// An entry is created, entered once and left once. Leaving restores everything that entering
// changed: the stack, the dispatch keys, grad mode, forward grad mode, inference mode, and whether
// saved-tensor hooks are enabled.
class Entry : public std::enable_shared_from_this<Entry> {
 public:
  explicit Entry(std::shared_ptr<Layer> layer) : layer_(std::move(layer)) {}
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  // Enters, and returns the level.
  int64_t enter();
  void leave();

  // Whether the layer is the last one that this thread has entered and not left.
  static bool is_innermost(const Layer& layer);

  // Null once the entry has been left.
  const Layer* layer() const {
    return layer_.get();
  }

 private:
  void put_back();

  std::shared_ptr<Layer> layer_;
  bool is_open_ = false;
  Modes modes_outside_{true, true};
  std::unique_ptr<ObservedRange> range_; // NOTE [Recorded calls]
  std::optional<Patched> patched_;
};

} // namespace torchlayers
