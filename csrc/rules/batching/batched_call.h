// One call of an operator under vmap, as seen by a batching rule: the arguments belong to the layer
// below, some with a leading batch dimension.
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
#include "core/trace/trace.h"
#include "rules/batching/uniform_batch.h"

namespace torchlayers {

// NOTE [A batching rule of our own]
// A rule first inspects the samples, and may still leave the operator to torch's batching rule.
// From the first tensor for which it calls `value` it works on the layer below, and must finish the
// call: with `run`, which calls the same operator on other arguments, or with `give`, which takes
// results that the rule computes itself. Dimensions are numbered as those of a sample: the batch
// dimension is in front of them. Errors about a sample (a dimension that it doesn't have, shapes
// that don't fit) are left for torch's rule to raise, because ours would mention the batch
// dimension. So a rule leaves such calls to it where it detects them.
class BatchedCall {
 public:
  // Inspects the arguments, once for all rules: unwraps dead wrappers, and raises for tensors that
  // have escaped from their vmap.
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
  // The argument as passed to the operator: for a batched tensor, one sample.
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
  // A symbol if the captured graph is for many sizes.
  const c10::SymInt& batch_size() const {
    return *layer_.batch_size();
  }
  bool is_batch_size_known() const {
    return batch_size().maybe_as_int().has_value();
  }
  // The number of samples, for a rule that needs it as an integer.
  int64_t count() const {
    return *batch_size().maybe_as_int();
  }

  // Whether its tensors are strided, as all rules assume.
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
  // Whether this is the only batched argument.
  bool only(size_t i) const {
    return num_batched_ == 1 && is_batched(i);
  }
  // Whether argument i is batched, and so is every other tensor, with samples of the same rank.
  bool all_like(size_t i) const;

  // A dimension of a sample of this rank, counted with the leading batch dimension; none if the
  // sample has no such dimension.
  static std::optional<int64_t> physical(int64_t dim, int64_t rank);
  // The same for a list; also none if the argument is not a list of integers.
  std::optional<std::vector<int64_t>> physical(const c10::IValue& dims, int64_t rank) const;
  // The sizes with the batch size in front; none if the argument is not a list of sizes.
  std::optional<std::vector<c10::SymInt>> physical_sizes(const c10::IValue& sizes) const;

  // The tensor on the layer below, with its batch dimension in front if it has one.
  at::Tensor value(const at::Tensor& tensor) const;
  at::Tensor value(size_t i) const {
    return value(tensor(i));
  }
  // The same, expanded to the batch if the tensor is not batched; undefined if the tensor is.
  at::Tensor expanded(const at::Tensor& tensor) const;
  at::Tensor expanded(size_t i) const {
    return has_tensor(i) ? expanded(tensor(i)) : at::Tensor();
  }

  // A value with dimensions of size one inserted after the batch dimension, so that its samples
  // have this rank.
  static at::Tensor raised(at::Tensor value, int64_t rank);

  void set(size_t i, c10::IValue value) {
    changed_.emplace_back(i, std::exchange(args_[first_ + i], std::move(value)));
  }
  // Calls the operator's decomposition instead, on this layer.
  bool decompose();
  // Calls the operator, with the arguments as set, on the layer below.
  bool run();
  // The same with the batched values unchanged. NOTE [Batched alike].
  bool run_alike();
  // The same, with argument i, a dimension or dimensions of the first tensor's samples, counted
  // with the batch dimension; false if the samples have no such dimensions.
  bool run_at_dim(size_t i);
  bool run_at_dims(size_t i);

  // Runs `compute` on the layer below. It returns a tensor, or several, with a leading batch
  // dimension.
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
  // The same for an in-place operator whose first argument is batched: `compute` writes to its
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
  // Like `give`, for a `compute` that returns a single tensor without a batch dimension.
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
  // Like `give`, where some of the results have no batch dimension.
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
  // The same for an operator that returns a list, some of whose members are batched.
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
  // Like `give`, for a `compute` that runs on this layer.
  template <class Compute>
  bool give_here(const Compute& compute) {
    trace("rule", op_, layer_);
    std::vector<at::Tensor> results = compute();
    args_.resize(first_);
    for (at::Tensor& result : results) {
      args_.emplace_back(std::move(result));
    }
    return true;
  }
  // The arguments, with every tensor i among them replaced by change(i).
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
  // Restores the arguments, for error messages.
  void put_back();
  // Whether its tensors, or the values of batched ones, are plain.
  bool are_plain() const;

  const Operator& op_;
  Args& args_;
  Layer& layer_;
  size_t first_;
  Alike alike_; // of a pointwise operator
  bool is_strided_ = true;
  size_t num_batched_ = 0;
  // For put_back: arguments before `set`, and which ones had batched tensors.
  c10::SmallVector<std::pair<size_t, c10::IValue>, 2> changed_;
  std::bitset<64> batched_;
};

// op(x, ..., dim, ...), where only x is batched: the rule of most views and of some reductions.
bool at_dim(BatchedCall& call, size_t arg);

// Merges the batch dimension into the channels: (B, N, C, ...) as (N, B C, ...).
at::Tensor beside_channels(const at::Tensor& x);

// A batching rule finishes a call and returns true, or leaves it unchanged. `arg` is the position
// of the argument that the rule is about, such as a dimension or sizes.
struct BatchingRule {
  bool (*apply)(BatchedCall& call, size_t arg);
  size_t arg = 0;
  bool counts_samples = false; // needs the batch size as an integer
};

} // namespace torchlayers
