// A layer: one transform at one level.
#pragma once

#include <ATen/functorch/DynamicLayer.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <iosfwd>
#include <memory>
#include <string>

#include "core/modes.h"
#include "core/operator.h"

namespace torchlayers {

class VjpRule;
class JvpRule;

// The tangents of the tensors among an operator's arguments or results, in their order, as values
// of the layers below; undefined where there is none.
using Tangents = c10::SmallVector<at::Tensor, 4>;

using Randomness = at::functorch::RandomnessType;

// A layer sees every operator twice: on the way in (process), and on the way to
// the layers below (send_down). csrc/README.md follows one operator through both.
class Layer {
 public:
  enum class Kind { Grad, Jvp, Vmap, Functionalize };

  explicit Layer(Kind kind);
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  // Does this transform's work on the operator whose arguments end `args`.
  virtual void process(const Operator& op, Args& args) = 0;

  // Hands the operator to the layers below, without this one.
  virtual void send_down(const Operator& op, Args& args) = 0;

  // Whether an operator made of others should be taken apart above this layer.
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

  // The operator passes this layer by. NOTE [Bypassing the stack].
  virtual void bypassed(const Operator&, const Args&) const {}

  // The entry that torch.func's stack holds for this layer. NOTE [The mirror].
  virtual at::functorch::DynamicLayer mirrored(int64_t level) const = 0;

  Kind kind() const {
    return kind_;
  }
  // 1 for the outermost layer; 0 before the layer is pushed.
  int64_t level() const {
    return level_;
  }
  // What tells its life apart from all others': the handle that its wrappers hold.
  const bool* life() const {
    return life_;
  }
  // The same for what does not hold the handle: no other layer of the process ever has it.
  uint64_t number() const {
    return number_;
  }
  void begin(int64_t level, const bool* life) {
    level_ = level;
    life_ = life;
  }
  // "grad (level 2)", as errors and traces say it.
  std::string name() const;

 private:
  Kind kind_;
  uint64_t number_;
  int64_t level_ = 0;
  const bool* life_ = nullptr;
};

const char* kind_name(Layer::Kind kind);
std::ostream& operator<<(std::ostream& out, const Layer& layer);

// grad and jvp: torch's autograd at this level, on wrapped tensors.
class AutogradLayer : public Layer {
 public:
  void process(const Operator& op, Args& args) override;
  void send_down(const Operator& op, Args& args) override;
  bool follows(const at::Tensor& tensor) const override;

  // The modes for the layers below, of those that hold here. NOTE [no_grad inside and
  // outside].
  virtual Modes modes_below(Modes here) const = 0;

 protected:
  using Layer::Layer;

  // The modes for the layers below while this operator runs there.
  Modes modes_below_caller(const Operator& op) const;
  // Throws where the target of an in-place operator, not lifted yet, is not the transform's. A dead
  // wrapper is as good as the value in it, which takes its place.
  void refuse_to_mutate_captured(const Operator& op, Args& args) const;
  void lift(const Operator& op, Args& args) const;
};

class GradLayer final : public AutogradLayer {
 public:
  GradLayer(bool previous_grad_mode, bool previous_inference_mode);
  void process(const Operator& op, Args& args) override;
  bool decomposes(const Operator& op) const override;
  bool has_rule_for(const Operator& op) const override {
    return op.vjp_rule != nullptr;
  }
  at::functorch::DynamicLayer mirrored(int64_t level) const override;

  bool previous_grad_mode() const {
    return previous_grad_mode_;
  }
  bool previous_inference_mode() const {
    return previous_inference_mode_;
  }
  // Nothing at this level needs recording. NOTE [The backward phase].
  bool runs_backward() const;

  Modes modes_below(Modes here) const override;

 private:
  friend class InBackward;
  void follow(const VjpRule& rule, const Operator& op, Args& args);
  void follow_view(const VjpRule& rule, const Operator& op, Args& args);

  bool previous_grad_mode_;
  bool previous_inference_mode_;
  // Shared with the engine's device threads, which run this layer's backward.
  std::atomic<int> backwards_running_{0};
};

// While it lives, the layer runs its backward. NOTE [The backward phase].
class InBackward {
 public:
  explicit InBackward(GradLayer* layer);
  ~InBackward();
  InBackward(const InBackward&) = delete;
  InBackward& operator=(const InBackward&) = delete;

 private:
  GradLayer* layer_;
};

// Whether Python code is running on this thread. bindings.cpp supplies it, so
// that no other file knows Python.
extern bool (*python_is_running)();

class JvpLayer final : public AutogradLayer {
 public:
  JvpLayer(bool previous_forward_grad_mode, bool previous_inference_mode);
  void process(const Operator& op, Args& args) override;
  bool decomposes(const Operator& op) const override;
  bool has_rule_for(const Operator& op) const override {
    return op.rule != nullptr;
  }
  at::functorch::DynamicLayer mirrored(int64_t level) const override;

  bool previous_forward_grad_mode() const {
    return previous_forward_grad_mode_;
  }
  bool previous_inference_mode() const {
    return previous_inference_mode_;
  }

 private:
  Modes modes_below(Modes here) const override;
  void follow(const JvpRule& rule, const Operator& op, Args& args, Tangents& tangents);
  void follow_in_place(const JvpRule& rule, const Operator& op, Args& args, Tangents& tangents);
  void leave_to_autograd(const Operator& op, Args& args);

  bool previous_forward_grad_mode_;
  bool previous_inference_mode_;
};

// vmap: batching rules, ours and torch's.
class VmapLayer final : public Layer {
 public:
  VmapLayer(c10::SymInt batch_size, Randomness randomness);
  void process(const Operator& op, Args& args) override;
  void send_down(const Operator& op, Args& args) override;
  bool follows(const at::Tensor& tensor) const override;
  // Above the layer its parts meet our rules; torch's rule would see them through to the end.
  bool decomposes(const Operator& op) const override {
    return op.is_composite_under_vmap && op.batching_rule == nullptr;
  }
  bool has_rule_for(const Operator& op) const override {
    return op.batching_rule != nullptr;
  }
  void bypassed(const Operator& op, const Args& args) const override;
  at::functorch::DynamicLayer mirrored(int64_t level) const override;

  const c10::SymInt& batch_size() const {
    return batch_size_;
  }
  Randomness randomness() const {
    return randomness_;
  }

 private:
  c10::SymInt batch_size_;
  Randomness randomness_;
};

// functionalize: torch's functionalization kernels, which turn mutations, and views
// too unless they are to be kept, into operators without side effects.
class FunctionalizeLayer final : public Layer {
 public:
  explicit FunctionalizeLayer(bool keeps_views)
      : Layer(Kind::Functionalize), keeps_views_(keeps_views) {}
  void process(const Operator& op, Args& args) override;
  void send_down(const Operator& op, Args& args) override;
  bool follows(const at::Tensor& tensor) const override;
  // torch's kernels take its own operators apart, and call others as they are, but for views and
  // writes.
  bool decomposes(const Operator& op) const override {
    return op.is_composite && op.is_custom && op.aliases;
  }
  at::functorch::DynamicLayer mirrored(int64_t level) const override;

  bool keeps_views() const {
    return keeps_views_;
  }

 private:
  bool keeps_views_;
};

const char* randomness_name(Randomness randomness);

} // namespace torchlayers
