// Entering a layer and leaving it: the one way in and the one way out.
#pragma once

#include <memory>
#include <utility>

#include "core/layer.h"
#include "core/modes.h"

namespace torchlayers {

// An entry is made, entered once and left once. Leaving puts back all that
// entering changed: the stack, the dispatch keys, grad mode, forward grad mode,
// inference mode, the saved-tensor hooks' switch.
class Entry : public std::enable_shared_from_this<Entry> {
 public:
  explicit Entry(std::shared_ptr<Layer> layer) : layer_(std::move(layer)) {}
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  // Enters, and returns the level.
  int64_t enter();
  void leave();

  // Until it is left; then null.
  const Layer* layer() const {
    return layer_.get();
  }

 private:
  void put_back();

  std::shared_ptr<Layer> layer_;
  bool is_open_ = false;
  Modes modes_outside_{true, true};
};

} // namespace torchlayers
