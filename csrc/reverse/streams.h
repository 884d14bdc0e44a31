// Reverse passes over graphs that were recorded on several streams.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/autograd/function.h>

#include <optional>

namespace torchlayers {

// NOTE [Streams]
// A device runs the work on each of its streams in order, while the CPU goes on. A node is run on
// the stream that it was recorded on, where the tensors that its operator read are ready. A tensor
// made on one stream and read on another has to be handed over: the reader waits for it, and the
// memory is marked as in use there, or the allocator would reuse it as soon as the stream that made
// it is past its last use. The pass begins and ends on the current streams. A graph that was
// recorded only on the current stream, as nearly all are, needs none of this: all work comes after
// the work it depends on.
// The engine does the same, but not inside a transform: it can't mark a wrapper's memory.

using OnStream = std::optional<c10::Stream>; // nullopt: the CPU

// The stream that the node was recorded on.
OnStream stream_of(const torch::autograd::Node& node);

// Lets `to` read a tensor computed on `from`; returns the stream on which to go on with it. For a
// stream of another device than the tensor's, the current stream of the tensor's device is used.
OnStream hand_over(const at::Tensor& tensor, const OnStream& from, const OnStream& to);

// Adds the gradient to the sum on this stream. The sum is undefined before the first gradient.
void accumulate(at::Tensor& sum, at::Tensor gradient, const OnStream& stream);

} // namespace torchlayers
