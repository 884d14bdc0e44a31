#include "core/record_stream.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace torchlayers {

void record_use(const at::TensorBase& tensor, c10::Stream stream) {
  if (tensor.has_storage() && !tensor.key_set().has(c10::DispatchKey::Python)) {
    const c10::impl::VirtualGuardImpl guard(stream.device_type());
    guard.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
  } else {
    at::Tensor(tensor).record_stream(
        stream); // reaches the layers below, whose tensors have a storage
  }
}

} // namespace torchlayers
