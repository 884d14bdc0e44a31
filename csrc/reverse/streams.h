// The streams of a graph that was recorded on several.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/autograd/function.h>

#include <optional>

namespace torchlayers {

// NOTE [Streams]
// A device works off what its streams are given, each in its order, while the processor goes on. A
// node is run on the stream that it was recorded on, where what its operator read is ready. What is
// made on one stream and read on another has to be handed over: the reader waits for it, and the
// memory is marked as in use there, or the device would give it to others as soon as the stream
// that made it is past its last use. The pass begins and ends on the streams that are current.
// A graph that was recorded on the one stream that is current, as nearly all are, needs none of
// this: everything comes after what it reads.
// The engine does the same, but not inside a transform: it can't mark a wrapper's memory.

using OnStream = std::optional<c10::Stream>; // none: the processor

// Where the node was recorded.
OnStream stream_of(const torch::autograd::Node& node);

// Lets `to` read what was computed on `from`; the stream on which to go on with it. A tensor of
// another device than a stream is on that device's current one.
OnStream hand_over(const at::Tensor& tensor, const OnStream& from, const OnStream& to);

// Adds the gradient to the sum, which is undefined before the first, on this stream.
void accumulate(at::Tensor& sum, at::Tensor gradient, const OnStream& stream);

} // namespace torchlayers
