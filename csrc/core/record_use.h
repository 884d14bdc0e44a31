// Telling a device who reads a tensor's memory.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/Stream.h>

namespace torchlayers {

// Until what this stream has been given so far is done, the memory goes to nobody else. Not by the
// operator where the tensor has memory of its own: torch's fallback for conjugated and negated
// views calls it for a copy, and writes that back, on whichever stream is current.
void record_use(const at::TensorBase& tensor, c10::Stream stream);

} // namespace torchlayers
