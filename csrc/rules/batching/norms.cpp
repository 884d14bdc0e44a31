// Layer, batch and group normalization.

#include <algorithm>

#include "core/aten_functions.h"
#include "rules/batching/families.h"

namespace torchlayers {
namespace {

using at::Tensor;

// A norm of half-precision input by parameters or statistics of single precision, as under
// autocast. torch's batching rules multiply by the parameters themselves, and mix the dtypes; so
// the operator is called in single precision, on this layer. `x` is the input's position, and the
// gradient of the result is in front of it.
bool in_single_precision(BatchedCall& call, size_t x, std::initializer_list<size_t> parameters) {
  const auto half = call.tensor(x).scalar_type();
  if (!at::isReducedFloatingType(half) || !std::ranges::any_of(parameters, [&](size_t i) {
        return call.has_tensor(i) && call.tensor(i).scalar_type() == at::kFloat;
      })) {
    return false;
  }
  return call.give_here([&] {
    std::vector<Tensor> results = call.call_all(call.args_with(
        [&](size_t i) { return i <= x ? call.tensor(i).to(at::kFloat) : call.tensor(i); }));
    if (results[0].defined()) {
      results[0] = results[0].to(half);
    }
    return results;
  });
}

// native_layer_norm(x, shape, weight, bias, eps): further leading dimensions make no difference.
bool layer_norm(BatchedCall& call, size_t) {
  if (!call[1].isIntList() || !call.only(0) ||
      call.rank(0) < static_cast<int64_t>(call[1].toIntVector().size())) {
    return in_single_precision(call, 0, {2, 3});
  }
  return call.run();
}

// native_layer_norm_backward(gradient, x, shape, mean, rstd, weight, bias, which)
bool layer_norm_backward(BatchedCall& call, size_t) {
  if (!call[2].isIntList() || !call.is_batched(0) || !call.is_batched(1) || !call.is_batched(3) ||
      !call.is_batched(4) || call.is_batched(5)) {
    return in_single_precision(call, 1, {5, 6});
  }
  const auto shape = call[2].toIntVector();
  const auto which = call[7].toBoolList();
  const int64_t in_front = call.rank(1) - static_cast<int64_t>(shape.size());
  return call.give([&] {
    const Tensor gradient = call.value(0);
    const Tensor x = call.value(1);
    const Tensor mean = call.value(3);
    const Tensor rstd = call.value(4);
    std::vector<Tensor> gradients(3);
    if (which[0]) {
      const auto weight = call.has_tensor(5) ? std::optional<Tensor>(call.tensor(5)) : std::nullopt;
      gradients[0] = std::get<0>(at::native_layer_norm_backward(
          gradient, x, shape, mean, rstd, weight, std::nullopt, {true, false, false}));
    }
    std::vector<int64_t> dims;
    for (int64_t dim = 1; dim <= in_front; ++dim) {
      dims.push_back(dim);
    }
    const auto of_sample = [&](const Tensor& each) { return dims.empty() ? each : each.sum(dims); };
    if (which[1]) {
      gradients[1] = of_sample(gradient * ((x - mean) * rstd));
    }
    if (which[2]) {
      gradients[2] = of_sample(gradient);
    }
    return gradients;
  });
}

// native_group_norm(x, weight, bias, N, C, HxW, groups, eps) -> (result, mean, rstd)
bool group_norm(BatchedCall& call, size_t) {
  if (!call.only(0) || call.rank(0) < 2 || !call[3].isInt() || !call[4].isInt() ||
      !call[5].isInt() || call.tensor(0).sym_numel() == 0 || call.batch_size() == 0) {
    return in_single_precision(call, 0, {1, 2});
  }
  return call.give([&] {
    const c10::SymInt& batch_size = call.batch_size();
    Args args = call.args_with([&](size_t i) { return call.value(i); });
    args[0] = args[0].toTensor().flatten(0, 1).contiguous(); // which its kernel assumes
    args[3] = batch_size * call[3].toInt();
    std::vector<Tensor> results = call.call_all(std::move(args));
    for (Tensor& result : results) {
      result = result.unflatten_symint(0, {batch_size, -1});
    }
    return results;
  });
}

// native_group_norm_backward(gradient, x, mean, rstd, weight, N, C, HxW, groups, which)
bool group_norm_backward(BatchedCall& call, size_t) {
  return in_single_precision(call, 1, {4});
}

// The inverse of beside_channels.
Tensor from_channels(const Tensor& x, const c10::SymInt& batch_size) {
  at::SymDimVector sizes(x.sym_sizes());
  sizes[1] /= batch_size;
  if (x.sym_size(0) == 1) {
    sizes.insert(sizes.begin(), batch_size);
    return x.view_symint(sizes);
  }
  sizes.insert(sizes.begin() + 1, batch_size);
  return x.view_symint(sizes).transpose(0, 1);
}

// batch_norm(x, weight, bias, running mean, running variance, training, ...) -> result, and
// native_batch_norm with the mean and rstd by channel. Channels are independent of each other.
bool batch_norm(BatchedCall& call, size_t) {
  const bool keeps_no_statistics = call.flag(5) && !call.has_tensor(3) && !call.has_tensor(4);
  if (!call.is_batched(0) || !keeps_no_statistics || call.rank(0) < 2 ||
      call.tensor(0).sym_numel() == 0 || call.batch_size() == 0) {
    return in_single_precision(call, 0, {1, 2, 3, 4});
  }
  for (size_t i : {1, 2}) {
    if (call.has_tensor(i) &&
        (call.rank(i) != 1 || call.tensor(i).sym_size(0) != call.tensor(0).sym_size(1))) {
      return false;
    }
  }
  return call.give([&] {
    const c10::SymInt& batch_size = call.batch_size();
    std::vector<Tensor> results = call.call_all(call.args_with([&](size_t i) {
      return i == 0 ? beside_channels(call.value(0)) : call.expanded(i).reshape({-1});
    }));
    results[0] = from_channels(results[0], batch_size);
    for (size_t i = 1; i < results.size(); ++i) {
      results[i] = results[i].view_symint({batch_size, -1});
    }
    return results;
  });
}

// native_batch_norm_backward(gradient, x, weight, running mean, running variance, mean, rstd, ...)
bool batch_norm_backward(BatchedCall& call, size_t) {
  return in_single_precision(call, 1, {2, 3, 4});
}

// The same with running statistics: if all samples share them, their images form one batch.
bool batch_norm_of_images(BatchedCall& call, size_t) {
  const bool has_statistics = !call.flag(5) && call.has_tensor(3) && call.has_tensor(4);
  if (!has_statistics || !call.only(0) || call.rank(0) < 2 || call.tensor(0).sym_numel() == 0 ||
      call.batch_size() == 0) {
    return batch_norm(call, 0);
  }
  return call.give([&] {
    const Tensor x = call.value(0);
    at::SymDimVector sizes(x.sym_sizes().slice(1));
    sizes[0] *= x.sym_size(0);
    const Tensor images = x.reshape_symint(sizes);
    return call.call(call.args_with([&](size_t i) { return i == 0 ? images : call.tensor(i); }))
        .view_symint(x.sym_sizes());
  });
}

} // namespace

void add_batched_norms(BatchingTable& rules) {
  rules.add({"native_layer_norm"}, {layer_norm});
  rules.add({"native_layer_norm_backward"}, {layer_norm_backward});
  rules.add({"native_group_norm"}, {group_norm});
  rules.add({"native_group_norm_backward"}, {group_norm_backward});
  rules.add({"native_batch_norm"}, {batch_norm});
  rules.add({"native_batch_norm_backward"}, {batch_norm_backward});
  rules.add({"batch_norm"}, {batch_norm_of_images});
}

} // namespace torchlayers
