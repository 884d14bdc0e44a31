// Entering a layer and leaving it: the one way in and the one way out.
#pragma once

#include <c10/core/InferenceMode.h>

#include <memory>
#include <optional>
#include <string>

#include "core/layer.h"
#include "core/modes.h"

namespace torchlayers {

// An entry is made, entered once and left once. Leaving puts back all that
// entering changed: the stack, the dispatch keys, grad mode, forward grad mode,
// inference mode, the saved-tensor hooks' switch.
class Entry : public std::enable_shared_from_this<Entry> {
 public:
  Entry() = default;
  virtual ~Entry() = default;
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  // Enters, and returns the level.
  int64_t enter();
  void leave();

  // From entering to leaving; else null.
  const Layer* layer() const {
    return layer_.get();
  }

 protected:
  // Builds the layer, and changes the ambient state to what it needs.
  virtual std::shared_ptr<Layer> prepare() = 0;
  // Undoes what `prepare` did beyond the modes that Entry itself puts back.
  virtual void undo() {}

 private:
  void put_back();

  std::shared_ptr<Layer> layer_;
  Modes modes_outside_{true, true};
};

// grad and vjp. Turns grad mode on (NOTE [no_grad inside and outside]), inference
// mode off, and saved-tensor hooks off, which would run between the layers.
class GradEntry final : public Entry {
 protected:
  std::shared_ptr<Layer> prepare() override;
  void undo() override;

 private:
  std::optional<c10::InferenceMode> no_inference_;
  std::optional<std::string> hooks_message_;
};

// jvp. Turns forward grad mode on, inference mode off, and holds the dual level.
class JvpEntry final : public Entry {
 protected:
  std::shared_ptr<Layer> prepare() override;
  void undo() override;

 private:
  std::optional<c10::InferenceMode> no_inference_;
};

class VmapEntry final : public Entry {
 public:
  VmapEntry(c10::SymInt batch_size, Randomness randomness)
      : batch_size_(std::move(batch_size)), randomness_(randomness) {}

 protected:
  std::shared_ptr<Layer> prepare() override;

 private:
  c10::SymInt batch_size_;
  Randomness randomness_;
};

class FunctionalizeEntry final : public Entry {
 public:
  explicit FunctionalizeEntry(bool keeps_views) : keeps_views_(keeps_views) {}

 protected:
  std::shared_ptr<Layer> prepare() override;

 private:
  bool keeps_views_;
};

// NOTE [One dual level]
// Forward AD has a single level in the whole process, and jvp in jvp shares it:
// what tells the two apart is whose wrapper carries the tangent. torch.func counts
// its jvps, and ours are counted with them, so that the first in opens the level
// and the last out closes it. The count lives in Python; bindings.cpp supplies both.
extern void (*hold_dual_level)();
extern void (*release_dual_level)();

} // namespace torchlayers
