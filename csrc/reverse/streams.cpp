#include "reverse/streams.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "core/device.h"
#include "core/record_stream.h"
#include "rules/rule.h"

namespace torchlayers {

OnStream stream_of(const torch::autograd::Node& node) {
  for (uint32_t i = 0; i < node.num_inputs(); ++i) {
    const auto& metadata = node.input_metadata(i);
    if (!metadata.was_default_constructed() && !runs_at_once(metadata.device())) {
      return metadata.stream();
    }
  }
  return std::nullopt;
}

OnStream hand_over(const at::Tensor& tensor, const OnStream& from, const OnStream& to) {
  const c10::Device device = tensor.device();
  if (runs_at_once(device)) {
    return std::nullopt;
  }
  const c10::impl::VirtualGuardImpl guard(device.type());
  const auto on_its_device = [&](const OnStream& stream) {
    return stream && stream->device() == device ? *stream : guard.getStream(device);
  };
  const c10::Stream maker = on_its_device(from);
  const c10::Stream reader = on_its_device(to);
  if (maker != reader) {
    c10::Event made(device.type());
    made.record(maker);
    made.block(reader);
    record_use(tensor, reader);
  }
  return reader;
}

void accumulate(at::Tensor& sum, at::Tensor gradient, const OnStream& stream) {
  if (sum.defined()) {
    const c10::OptionalStreamGuard guard(stream);
    sum = sum_of({sum, gradient});
  } else {
    sum = std::move(gradient);
  }
}

} // namespace torchlayers
