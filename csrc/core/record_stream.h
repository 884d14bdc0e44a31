// Tells the allocator which stream uses a tensor's memory.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/Stream.h>

namespace torchlayers {

// Keeps the memory from being reused until the work queued on this stream so far is done. Does not
// call the operator record_stream if the tensor has a storage: torch's fallback for conjugated and
// negated views calls it on a copy, and writes that back, on whichever stream is current.
void record_use(const at::TensorBase& tensor, c10::Stream stream);

} // namespace torchlayers
