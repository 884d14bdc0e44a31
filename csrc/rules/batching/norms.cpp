// Layer and group normalization.
#include <ATen/ATen.h>

#include "families.h"

namespace torchlayers {
namespace {

using at::Tensor;

// native_layer_norm(x, shape, weight, bias, eps): what is in front of the shape is no matter.
bool layer_norm(BatchedCall& call, size_t) {
  if (!call[1].isIntList() || !call.only(0) ||
      call.rank(0) < static_cast<int64_t>(call[1].toIntVector().size())) {
    return false;
  }
  return call.run();
}

// native_layer_norm_backward(gradient, x, shape, mean, rstd, weight, bias, which)
bool layer_norm_backward(BatchedCall& call, size_t) {
  if (!call[2].isIntList() || !call.is_batched(0) || !call.is_batched(1) || !call.is_batched(3) ||
      !call.is_batched(4) || call.is_batched(5)) {
    return false;
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
      !call[5].isInt() || call.tensor(0).numel() == 0 || call.batch_size() == 0) {
    return false;
  }
  return call.give([&] {
    const int64_t batch_size = call.batch_size();
    Args args = call.args_with([&](size_t i) { return call.value(i); });
    args[0] = args[0].toTensor().flatten(0, 1).contiguous(); // its kernel takes that for granted
    args[3] = call[3].toInt() * batch_size;
    std::vector<Tensor> results = call.call_all(std::move(args));
    for (Tensor& result : results) {
      result = result.unflatten(0, {batch_size, -1});
    }
    return results;
  });
}

} // namespace

void add_batched_norms(BatchTable& rules) {
  rules.add({"native_layer_norm"}, {layer_norm});
  rules.add({"native_layer_norm_backward"}, {layer_norm_backward});
  rules.add({"native_group_norm"}, {group_norm});
}

} // namespace torchlayers
