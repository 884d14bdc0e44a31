// A finished call of an operator, as seen by a cotangent rule.
#pragma once

#include <c10/util/FunctionRef.h>

#include <bitset>
#include <utility>
#include <vector>

#include "rules/operands.h"
#include "rules/term.h"

namespace torchlayers {

// A tensor that cotangents are pulled back to: an argument, or a member of a list.
struct Target {
  Target(
      size_t arg,
      size_t member,
      c10::SymIntArrayRef sizes,
      at::ScalarType dtype,
      at::Device device,
      bool is_column_major)
      : arg(arg),
        member(member),
        sizes(sizes),
        dtype(dtype),
        device(device),
        is_column_major(is_column_major) {}

  size_t arg;
  size_t member;
  c10::SymDimVector sizes;
  at::ScalarType dtype;
  at::Device device;
  bool is_column_major; // a matrix that is the transpose of a contiguous one
};

// Tensors that the rule does not read are undefined.
class VjpCall : public Operands {
 public:
  // `cotangents` are those of the differentiable results, in order, and `gradients` runs parallel
  // to `targets`.
  VjpCall(
      const Operator& op,
      const Args& args,
      const Args& results,
      at::ArrayRef<Target> targets,
      at::ArrayRef<at::Tensor> cotangents,
      c10::function_ref<bool(size_t)> is_wanted,
      std::vector<at::Tensor>& gradients)
      : Operands(op, args.data()),
        targets_(targets),
        cotangents_(cotangents),
        is_wanted_(is_wanted),
        gradients_(gradients) {
    results_ = results.data();
  }

  at::ArrayRef<at::Tensor> cotangents() const {
    return cotangents_;
  }
  at::ArrayRef<Target> targets() const {
    return targets_;
  }
  // For a list: whether the gradient of any member is wanted.
  bool wants(size_t arg) const;
  bool wants(size_t arg, size_t member) const;
  // These take an argument that is a target.
  c10::SymIntArrayRef sizes_of(size_t arg) const {
    return target(arg).sizes;
  }
  at::ScalarType dtype_of(size_t arg) const {
    return target(arg).dtype;
  }
  at::Device device_of(size_t arg) const {
    return target(arg).device;
  }
  bool is_column_major(size_t arg) const {
    return target(arg).is_column_major;
  }

  void give(size_t arg, at::Tensor gradient, size_t member = 0);

 private:
  const Target& target(size_t arg) const;

  at::ArrayRef<Target> targets_;
  at::ArrayRef<at::Tensor> cotangents_;
  c10::function_ref<bool(size_t)> is_wanted_;
  std::vector<at::Tensor>& gradients_;
};

// An operator's rule for cotangents.
class VjpRule {
 public:
  VjpRule() = default;
  virtual ~VjpRule() = default;
  VjpRule(const VjpRule&) = delete;
  VjpRule& operator=(const VjpRule&) = delete;

  // Whether the rule gives the gradient with respect to this argument.
  bool knows(size_t arg) const {
    return arg < known_.size() && known_[arg];
  }
  bool knows_all(const std::bitset<64>& args) const {
    return (args & ~known_).none();
  }
  // The values that it reads for that.
  const Reads& reads(size_t arg) const {
    return reads_[arg];
  }
  // Whether this result is differentiable.
  bool differentiates(size_t result) const {
    return result < results_.size() && results_[result];
  }

  virtual void vjp(VjpCall& call) const = 0;

 protected:
  void know(size_t arg, const Reads& reads);

  std::bitset<64> results_{1};

 private:
  std::bitset<64> known_;
  std::vector<Reads> reads_;
};

// One argument at a time.
class ByArgument final : public VjpRule {
 public:
  explicit ByArgument(std::vector<Vjp> vjps);
  void vjp(VjpCall& call) const override;
  const std::vector<Vjp>& vjps() const {
    return vjps_;
  }

 private:
  std::vector<Vjp> vjps_;
};

// All arguments at once, possibly from the cotangents of several results.
class AtOnce final : public VjpRule {
 public:
  AtOnce(
      const std::bitset<64>& args,
      const std::bitset<64>& results,
      const Reads& reads,
      void (*vjp)(VjpCall&));
  void vjp(VjpCall& call) const override {
    vjp_(call);
  }

 private:
  void (*vjp_)(VjpCall&);
};

} // namespace torchlayers
