#include "rules/batching/batched_call.h"

#include "core/args.h"
#include "core/callbacks.h"
#include "core/errors.h"
#include "core/skip_autograd.h"
#include "values/batched.h"
#include "values/wrapper.h"

namespace torchlayers {

BatchedCall::BatchedCall(const Operator& op, Args& args, Layer& layer)
    : op_(op), args_(args), layer_(layer), first_(args.size() - op.num_args), alike_(layer) {
  bool any_dead = false;
  const auto look_at = [&](const at::Tensor& tensor) {
    if (is_batched(tensor)) {
      const at::Tensor& value = at::functorch::maybeGetBatchedImpl(tensor)->value();
      is_strided_ = is_strided_ && torchlayers::is_strided(value);
      ++num_batched_;
    } else {
      is_strided_ = is_strided_ && torchlayers::is_strided(tensor);
    }
    if (op.is_pointwise) {
      alike_.look_at(tensor);
    }
  };
  visit_tensors(args, op.num_args, [&](const at::Tensor& tensor) {
    if (is_dead_or_escaped(tensor, layer)) {
      any_dead = true;
      look_at(without_dead_wrappers(tensor));
    } else {
      look_at(tensor);
    }
  });
  if (any_dead) {
    take_off_dead_wrappers(op, args);
  }
}

bool BatchedCall::all_like(size_t i) const {
  if (!is_batched(i)) {
    return false;
  }
  return !any_tensor(args_, op_.num_args, [&](const at::Tensor& each) {
    return !is_batched(each) || each.dim() != rank(i);
  });
}

std::optional<int64_t> BatchedCall::physical(int64_t dim, int64_t rank) {
  if (dim < -rank || dim >= rank) {
    return std::nullopt;
  }
  return (dim < 0 ? dim + rank : dim) + 1;
}

std::optional<std::vector<int64_t>> BatchedCall::physical(
    const c10::IValue& dims, int64_t rank) const {
  if (!dims.isIntList()) {
    return std::nullopt;
  }
  std::vector<int64_t> all = dims.toIntVector();
  for (int64_t& dim : all) {
    const auto moved = physical(dim, rank);
    if (!moved) {
      return std::nullopt;
    }
    dim = *moved;
  }
  return all;
}

std::optional<std::vector<c10::SymInt>> BatchedCall::physical_sizes(
    const c10::IValue& sizes) const {
  if (!sizes.isIntList() && !sizes.isSymIntList()) {
    return std::nullopt;
  }
  std::vector<c10::SymInt> all{batch_size()};
  for (const c10::SymInt& size : sizes.toSymIntVector()) {
    all.push_back(size);
  }
  return all;
}

at::Tensor BatchedCall::value(const at::Tensor& tensor) const {
  if (!is_batched(tensor)) {
    return tensor;
  }
  const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
  return batched->bdim() == 0 ? batched->value() : batched->value().movedim(batched->bdim(), 0);
}

at::Tensor BatchedCall::expanded(const at::Tensor& tensor) const {
  if (is_batched(tensor)) {
    return value(tensor);
  }
  at::SymDimVector sizes{batch_size()};
  sizes.append(tensor.sym_sizes().begin(), tensor.sym_sizes().end());
  return tensor.expand_symint(sizes);
}

at::Tensor BatchedCall::raised(at::Tensor value, int64_t rank) {
  while (value.dim() < rank + 1) {
    value = value.unsqueeze(1);
  }
  return value;
}

bool BatchedCall::decompose() {
  return callbacks.decompose(op_, args_);
}

bool BatchedCall::run() {
  trace("rule", op_, layer_);
  try {
    Below below(layer_, op_);
    below.skip_autograd(op_, are_plain());
    change_tensors(args_, op_.num_args, [&](const at::Tensor& tensor, size_t i) {
      batched_[i] = is_batched(tensor);
      return value(tensor);
    });
    op_.call(args_);
  } catch (const c10::Error&) { // its message needs the arguments; a Python exception does not
    put_back();
    throw;
  } catch (const LayerError&) {
    put_back();
    throw;
  }
  change_tensors(args_, op_.num_returns, [&](const at::Tensor& result, size_t) {
    return batched(result, /*dim=*/0, layer_);
  });
  return true;
}

bool BatchedCall::run_alike() {
  change_tensors(args_, op_.num_args, [&](const at::Tensor& tensor, size_t) -> at::Tensor {
    return alike_.value(tensor);
  });
  try {
    layer_.send_down(op_, args_);
  } catch (const c10::Error&) {
    alike_.put_back(args_, op_.num_args);
    throw;
  } catch (const LayerError&) {
    alike_.put_back(args_, op_.num_args);
    throw;
  }
  change_tensors(args_, op_.num_returns, [&](const at::Tensor& result, size_t) {
    return alike_.batched(result);
  });
  return true;
}

void BatchedCall::put_back() {
  if (args_.size() < size()) {
    return;
  }
  change_tensors(args_, size(), [&](const at::Tensor& tensor, size_t i) {
    return batched_[i] ? batched(tensor, /*dim=*/0, layer_) : tensor;
  });
  for (auto& [i, value] : changed_) {
    args_[first_ + i] = value;
  }
}

bool BatchedCall::are_plain() const {
  return !any_tensor(
      args_, op_.num_args, [](const at::Tensor& each) { return !is_plain_in_batch(each); });
}

bool BatchedCall::run_at_dim(size_t i) {
  const c10::IValue& given = (*this)[i];
  const auto dim = given.isInt() ? physical(given.toInt(), rank(0)) : std::nullopt;
  if (!dim) {
    return false;
  }
  set(i, *dim);
  return run();
}

bool BatchedCall::run_at_dims(size_t i) {
  const auto dims = physical((*this)[i], rank(0));
  if (!dims) {
    return false;
  }
  set(i, *dims);
  return run();
}

std::vector<at::Tensor> BatchedCall::call_all(Args args) const {
  op_.call(args);
  std::vector<at::Tensor> results;
  for (const c10::IValue& result : args) {
    results.push_back(result.toTensor());
  }
  return results;
}

std::vector<at::Tensor> BatchedCall::call_list(Args args) const {
  op_.call(args);
  return args[0].toTensorVector();
}

at::Tensor BatchedCall::call(Args args) const {
  return call_all(std::move(args))[0];
}

void BatchedCall::finish(
    const std::vector<at::Tensor>& results, const std::vector<bool>& is_batched) {
  args_.resize(first_);
  for (size_t i = 0; i < results.size(); ++i) {
    const bool has_batch = results[i].defined() && (is_batched.empty() || is_batched[i]);
    args_.emplace_back(has_batch ? batched(results[i], /*dim=*/0, layer_) : results[i]);
  }
}

void BatchedCall::finish_list(
    std::vector<at::Tensor> results, const std::vector<bool>& is_batched) {
  args_.resize(first_);
  for (size_t i = 0; i < results.size(); ++i) {
    if (is_batched[i]) {
      results[i] = batched(results[i], /*dim=*/0, layer_);
    }
  }
  args_.emplace_back(std::move(results));
}

bool at_dim(BatchedCall& call, size_t arg) {
  return call.only(0) && call.run_at_dim(arg);
}

at::Tensor beside_channels(const at::Tensor& x) {
  at::SymDimVector sizes(x.sym_sizes().slice(1));
  sizes[1] *= x.sym_size(0);
  return (x.sym_size(1) == 1 ? x : x.transpose(0, 1)).reshape_symint(sizes);
}

} // namespace torchlayers
