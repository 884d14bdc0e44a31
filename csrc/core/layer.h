// A layer: one transform at one level.
#pragma once

#include <ATen/functorch/DynamicLayer.h>
#include <c10/util/SmallVector.h>

#include <iosfwd>
#include <map>
#include <memory>
#include <string>

#include "core/modes.h"
#include "core/operator.h"

namespace torchlayers {

class LocalStorages;

// The tangents of the tensors among an operator's arguments or results, in their order, as values
// of the layers below; undefined where there is none.
using Tangents = c10::SmallVector<at::Tensor, 4>;

// A layer sees every operator twice: on the way in (process), and on the way to the layers below
// (send_down). csrc/README.md follows one operator through both. Each kind of layer is a class in
// layers/, which overrides the defaults that do not fit it.
class Layer : public std::enable_shared_from_this<Layer> {
 public:
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  // Does this transform's work on the operator whose arguments are the last values of `args`.
  virtual void process(const Operator& op, Args& args) = 0;

  // Hands the operator to the layers below, without this one.
  virtual void send_down(const Operator& op, Args& args) = 0;

  // "grad", as errors and traces say it.
  virtual const char* kind() const = 0;

  // Details of the layer for torchlayers.current_stack().
  virtual std::map<std::string, c10::IValue> metadata() const {
    return {};
  }

  // The entry that torch.func's stack holds for this layer. NOTE [The mirror].
  virtual at::functorch::DynamicLayer mirrored(int64_t level) const = 0;

  // Sets up the thread state that the transform needs, except its modes, before the layer is
  // pushed; switch_off restores it after the layer is popped.
  virtual void switch_on() {}
  virtual void switch_off() {}

  // Whether a composite operator is decomposed above this layer.
  virtual bool decomposes(const Operator&) const {
    return false;
  }

  // Whether the layer has a rule for the operator.
  virtual bool has_rule_for(const Operator&) const {
    return false;
  }

  // Whether the transform tracks this tensor, and would lose information if a kernel treated it as
  // a plain one.
  virtual bool follows(const at::Tensor& tensor) const = 0;

  // Whether this is an autograd layer: it tracks autograd's tensors, and switches autograd's modes.
  bool is_autograd() const {
    return is_autograd_;
  }

  // The batch size of a vmap layer; null for other layers.
  virtual const c10::SymInt* batch_size() const {
    return nullptr;
  }

  // The tensors that a vmap layer's function has created; null for others. NOTE [Made inside].
  LocalStorages* local_storages() const {
    return local_storages_;
  }

  // Whether it runs its backward, which is not recorded at this level. NOTE [The backward phase].
  virtual bool runs_backward() const {
    return false;
  }

  // For an autograd layer: the modes for the layers below, given those that hold at this layer.
  // NOTE [no_grad inside and outside].
  virtual Modes modes_below(Modes here) const {
    return here;
  }
  // The modes that hold for the caller of an operator that the layer processes; `here` are the
  // thread's.
  virtual Modes modes_of_caller(const Operator&, Modes here) const {
    return here;
  }

  // For user code that runs on an earlier stack (core/saved_stack.h): turn on again, and off,
  // what `switch_on` set up for a layer that has ended since.
  virtual void resume() {}
  virtual void suspend() {}
  // Keeps the object in Python that does the layer's work; null if there is none.
  virtual std::shared_ptr<void> object_in_python() const {
    return nullptr;
  }
  // Leaves the backward phase meanwhile; returns the value that return_to_backward needs.
  virtual int leave_backward() {
    return 0;
  }
  virtual void return_to_backward(int) {}

  // Called when the operator bypasses this layer. NOTE [Bypassing the stack].
  virtual void bypassed(const Operator&, const Args&) const {}

  // 1 for the outermost layer; 0 before the layer is pushed.
  int64_t level() const {
    return level_;
  }
  // Identifies the layer while it exists: the flag that the life handle in its wrappers points to.
  const bool* life() const {
    return &is_alive_;
  }
  // Identifies it without that handle: no other layer of the process ever has this number.
  uint64_t number() const {
    return number_;
  }
  // How many pairs of saved-tensor hooks were on when the layer was entered.
  size_t hooks_around() const {
    return hooks_around_;
  }
  void set_hooks_around(size_t count) {
    hooks_around_ = count;
  }
  bool* begin(int64_t level);
  void end() {
    is_alive_ = false;
  }
  // "grad (level 2)", as errors and traces say it.
  std::string name() const;

 protected:
  explicit Layer(bool is_autograd);

  LocalStorages* local_storages_ = nullptr;

  // Calls an operator that the layer processes on the layers below, with the last values of `args`.
  // `are_plain`: all of them are plain (core/skip_autograd.h).
  void call_below(const Operator& op, Args& args, bool are_plain) const;

 private:
  const bool is_autograd_;
  const uint64_t number_;
  int64_t level_ = 0;
  size_t hooks_around_ = 0;
  bool is_alive_ = false;
};

std::ostream& operator<<(std::ostream& out, const Layer& layer);

} // namespace torchlayers
