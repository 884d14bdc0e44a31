// Shared by norms and convolutions, which have an input, and a weight and a bias for each channel.
#pragma once

#include <array>
#include <tuple>

#include "core/aten_functions.h"
#include "rules/vjp_call.h"

namespace torchlayers {

// A channel's parameter, aligned with the channels: along the dimension after the batch dimension.
inline at::Tensor along_channels(const at::Tensor& parameter, int64_t rank) {
  if (!parameter.defined() || rank < 2) {
    return parameter;
  }
  c10::SymDimVector sizes(rank, 1);
  sizes[1] = parameter.sym_numel();
  return parameter.reshape_symint(sizes);
}

// Sets the gradients of all three.
inline void give_each(
    VjpCall& call,
    std::array<size_t, 3> args,
    const std::tuple<at::Tensor, at::Tensor, at::Tensor>& gradients) {
  call.give(args[0], std::get<0>(gradients));
  call.give(args[1], std::get<1>(gradients));
  call.give(args[2], std::get<2>(gradients));
}

} // namespace torchlayers
