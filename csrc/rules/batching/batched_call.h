// One call of an operator under vmap, as a batching rule sees it: arguments of the layer below,
// some with the batch in front.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <c10/util/SmallVector.h>

#include <bitset>
#include <optional>
#include <utility>
#include <vector>

#include "core/below.h"
#include "core/operator.h"
#include "core/trace.h"
#include "rules/batching/alike.h"

namespace torchlayers {

// NOTE [A batching rule of our own]
// A rule first looks at what the samples are like, and may then still leave the operator to
// torch's batching rule. From the first tensor that it asks `value` for, it is on the layer
// below, and ends the call: with `run`, the same operator on other arguments, or with `give`,
// what it has made of them itself. A dimension is counted as a sample's: the batch is in front
// of it.
// Errors about a sample (a dimension that it has not, shapes that don't fit) are torch's rule's
// to raise, or would name the batch: so a rule leaves those calls to it where it sees them.
class BatchedCall {
 public:
  // Looks the arguments over, once for all rules: takes off dead wrappers, and throws on tensors
  // that have escaped.
  BatchedCall(const Operator& op, Args& args, Layer& layer);

  const Operator& op() const {
    return op_;
  }
  const Alike& alike() const {
    return alike_;
  }

  size_t size() const {
    return op_.num_args;
  }
  // The argument as it was given: of a batched tensor, one sample.
  const c10::IValue& operator[](size_t i) const {
    return args_[first_ + i];
  }
  bool flag(size_t i) const {
    return (*this)[i].toBool();
  }
  bool has_tensor(size_t i) const {
    return (*this)[i].isTensor() && (*this)[i].toTensor().defined();
  }
  const at::Tensor& tensor(size_t i) const {
    return (*this)[i].toTensor();
  }
  int64_t rank(size_t i) const {
    return tensor(i).dim();
  }
  int64_t level() const {
    return layer_.level();
  }
  std::string layer_name() const {
    return layer_.name();
  }
  // A symbol, where what is recorded is for many sizes.
  const c10::SymInt& batch_size() const {
    return *layer_.batch_size();
  }
  bool is_batch_size_known() const {
    return batch_size().maybe_as_int().has_value();
  }
  // How many samples there are, for a rule that counts them.
  int64_t count() const {
    return *batch_size().maybe_as_int();
  }

  // Whether its tensors are strided, as all rules take for granted.
  bool is_strided() const {
    return is_strided_;
  }

  bool is_batched(const at::Tensor& tensor) const {
    const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
    return batched != nullptr && batched->level() == layer_.level();
  }
  bool is_batched(size_t i) const {
    return has_tensor(i) && is_batched(tensor(i));
  }
  bool any_batched() const {
    return num_batched_ > 0;
  }
  // Whether this is the one batched argument.
  bool only(size_t i) const {
    return num_batched_ == 1 && is_batched(i);
  }
  // Whether argument i is batched, and every other tensor too, with samples of its rank.
  bool all_like(size_t i) const;

  // A dimension of a sample of this rank, seen with the batch in front; none where it has none
  // such.
  static std::optional<int64_t> physical(int64_t dim, int64_t rank);
  // The same of a list; none too where the argument is something else than a list of numbers.
  std::optional<std::vector<int64_t>> physical(const c10::IValue& dims, int64_t rank) const;
  // The sizes with the batch's in front; none where the argument is something else than sizes.
  std::optional<std::vector<c10::SymInt>> physical_sizes(const c10::IValue& sizes) const;

  // The tensor on the layer below, its batch in front if it has one.
  at::Tensor value(const at::Tensor& tensor) const;
  at::Tensor value(size_t i) const {
    return value(tensor(i));
  }
  // The same with a batch in any case; undefined where the tensor is.
  at::Tensor expanded(const at::Tensor& tensor) const;
  at::Tensor expanded(size_t i) const {
    return has_tensor(i) ? expanded(tensor(i)) : at::Tensor();
  }

  // A value with dimensions of one between the batch and the sample's own, to have as many of a
  // sample as this.
  static at::Tensor raised(at::Tensor value, int64_t rank);

  void set(size_t i, c10::IValue value) {
    changed_.emplace_back(i, std::exchange(args_[first_ + i], std::move(value)));
  }
  // Calls what the operator is made of instead of it, on this layer.
  bool decompose();
  // Calls the operator, as it now is, on the layer below.
  bool run();
  // The same with the values as they are batched, which are alike.
  bool run_alike();
  // The same, with the dimension of the first tensor's samples that argument i names, or the
  // dimensions, counted behind the batch; false where they have none such.
  bool run_at_dim(size_t i);
  bool run_at_dims(size_t i);

  // Runs `compute` on the layer below; what it returns, a tensor or several, has the batch in
  // front.
  template <class Compute>
  bool give(const Compute& compute) {
    trace("rule", op_, layer_);
    std::vector<at::Tensor> results;
    {
      Below below(layer_, op_);
      below.skip_autograd(op_, are_plain());
      results = as_list(compute());
    }
    finish(results);
    return true;
  }
  // The same of an operator in place, whose first argument is batched: `compute` writes to its
  // value.
  template <class Compute>
  bool write(const Compute& compute) {
    trace("rule", op_, layer_);
    {
      const Below below(layer_, op_);
      compute();
    }
    at::Tensor written = tensor(0);
    args_.resize(first_);
    args_.emplace_back(std::move(written));
    return true;
  }
  // The same as `give` where what it returns is one tensor that does not depend on the sample.
  template <class Compute>
  bool give_unbatched(const Compute& compute) {
    trace("rule", op_, layer_);
    at::Tensor result;
    {
      const Below below(layer_, op_);
      result = compute();
    }
    args_.resize(first_);
    args_.emplace_back(std::move(result));
    return true;
  }
  // The same where some of what it returns do not depend on the sample.
  template <class Compute>
  bool give_some(const std::vector<bool>& is_batched, const Compute& compute) {
    trace("rule", op_, layer_);
    std::vector<at::Tensor> results;
    {
      const Below below(layer_, op_);
      results = compute();
    }
    finish(results, is_batched);
    return true;
  }
  // The same of an operator that returns a list, with those of its members that are batched.
  template <class Compute>
  bool give_list(const std::vector<bool>& is_batched, const Compute& compute) {
    trace("rule", op_, layer_);
    std::vector<at::Tensor> results;
    {
      Below below(layer_, op_);
      results = compute();
    }
    finish_list(std::move(results), is_batched);
    return true;
  }
  // The arguments, with change(i) for every tensor i among them.
  template <class Change>
  Args args_with(const Change& change) const {
    Args args = last(args_, size()).vec();
    for (size_t i = 0; i < size(); ++i) {
      if (has_tensor(i)) {
        args[i] = change(i);
      }
    }
    return args;
  }
  // Calls the operator on the layer below with these arguments.
  at::Tensor call(Args args) const;
  std::vector<at::Tensor> call_all(Args args) const;
  std::vector<at::Tensor> call_list(Args args) const; // of an operator that returns a list

 private:
  static std::vector<at::Tensor> as_list(at::Tensor result) {
    return {std::move(result)};
  }
  static std::vector<at::Tensor> as_list(std::vector<at::Tensor> results) {
    return results;
  }
  void finish(const std::vector<at::Tensor>& results, const std::vector<bool>& is_batched = {});
  void finish_list(std::vector<at::Tensor> results, const std::vector<bool>& is_batched);
  // Puts the arguments back as they were, for an error's sake.
  void put_back();
  // Whether its tensors, or what they batch, are plain.
  bool are_plain() const;

  const Operator& op_;
  Args& args_;
  Layer& layer_;
  size_t first_;
  Alike alike_; // of a pointwise operator
  bool is_strided_ = true;
  size_t num_batched_ = 0;
  // For put_back: arguments as they were, and those whose tensors were batched.
  c10::SmallVector<std::pair<size_t, c10::IValue>, 2> changed_;
  std::bitset<64> batched_;
};

// op(x, ..., dim, ...), x alone batched: the rule of most views and of some reductions.
bool at_dim(BatchedCall& call, size_t arg);

// The batch beside the channels: (B, N, C, ...) as (N, B C, ...).
at::Tensor beside_channels(const at::Tensor& x);

// What a rule does with a call: ends it and returns true, or leaves it as it was. `arg` is the
// place of the argument that the rule is about: its dimension, its sizes.
struct BatchingRule {
  bool (*apply)(BatchedCall& call, size_t arg);
  size_t arg = 0;
  bool counts_samples = false; // for which it needs a number of them
};

} // namespace torchlayers
