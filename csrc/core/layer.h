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

class Inside;

// The tangents of the tensors among an operator's arguments or results, in their order, as values
// of the layers below; undefined where there is none.
using Tangents = c10::SmallVector<at::Tensor, 4>;

// A layer sees every operator twice: on the way in (process), and on the way to the layers below
// (send_down). csrc/README.md follows one operator through both. Each kind is a class of its own
// in layers/, which overrides what it has another answer to.
class Layer : public std::enable_shared_from_this<Layer> {
 public:
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  // Does this transform's work on the operator whose arguments end `args`.
  virtual void process(const Operator& op, Args& args) = 0;

  // Hands the operator to the layers below, without this one.
  virtual void send_down(const Operator& op, Args& args) = 0;

  // "grad", as errors and traces say it.
  virtual const char* kind() const = 0;

  // What torchlayers.current_stack() tells of it.
  virtual std::map<std::string, c10::IValue> metadata() const {
    return {};
  }

  // The entry that torch.func's stack holds for this layer. NOTE [The mirror].
  virtual at::functorch::DynamicLayer mirrored(int64_t level) const = 0;

  // Before the layer is pushed: changes the thread's state, but for its modes, to what the
  // transform needs, and after it is popped puts that back.
  virtual void switch_on() {}
  virtual void switch_off() {}

  // Whether an operator made of others is decomposed above this layer.
  virtual bool decomposes(const Operator&) const {
    return false;
  }

  // Whether the layer follows a rule of its own for it.
  virtual bool has_rule_for(const Operator&) const {
    return false;
  }

  // Whether the transform keeps account of this tensor, and would lose something where a kernel
  // takes it for a plain one.
  virtual bool follows(const at::Tensor& tensor) const = 0;

  // Whether the tensors that it follows are autograd's, whose modes it switches.
  bool is_autograd() const {
    return is_autograd_;
  }

  // Of a layer that batches; null for another.
  virtual const c10::SymInt* batch_size() const {
    return nullptr;
  }

  // Of a layer that batches: what its function has made itself. NOTE [Made inside].
  Inside* inside() const {
    return inside_;
  }

  // Whether it runs its backward, which nobody records at this level. NOTE [The backward phase].
  virtual bool runs_backward() const {
    return false;
  }

  // Of a layer of autograd's: the modes for the layers below, of those that hold here.
  // NOTE [no_grad inside and outside].
  virtual Modes modes_below(Modes here) const {
    return here;
  }
  // The modes that hold here for the caller of an operator that the layer processes.
  virtual Modes modes_of_caller(const Operator&) const {
    return Modes::of_thread();
  }

  // For code of the user's that runs on the stack as it was (core/earlier_stack.h): what
  // `switch_on` gave a layer that has ended since is on again, and off.
  virtual void resume() {}
  virtual void suspend() {}
  // Meanwhile the layer does not run its backward; returns what puts that back.
  virtual int leave_backward() {
    return 0;
  }
  virtual void return_to_backward(int) {}

  // The operator bypasses this layer. NOTE [Bypassing the stack].
  virtual void bypassed(const Operator&, const Args&) const {}

  // 1 for the outermost layer; 0 before the layer is pushed.
  int64_t level() const {
    return level_;
  }
  // What tells its life apart from all others': what the handle points to that its wrappers hold.
  const bool* life() const {
    return &is_alive_;
  }
  // The same for what does not hold the handle: no other layer of the process ever has it.
  uint64_t number() const {
    return number_;
  }
  // How many pairs of saved-tensor hooks were on around it.
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

  Inside* inside_ = nullptr;

  // Calls an operator that it processes on the layers below, with the values that end `args`.
  // `are_plain`: all of these are (core/recording.h).
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
