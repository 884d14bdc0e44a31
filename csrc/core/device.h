// All that depends on the device that tensors are on.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/TensorImpl.h>

#include "core/keys.h"

namespace torchlayers {

// Whether a tensor with these keys, autocast's left out, is nothing but numbers in memory of one
// of the devices that are known here.
inline bool are_keys_of_plain(DispatchKeySet keys) {
  constexpr DispatchKeySet kOnCpu(
      {DispatchKey::CPU, DispatchKey::AutogradCPU, DispatchKey::ADInplaceOrView});
  constexpr DispatchKeySet kOnCuda(
      {DispatchKey::CUDA, DispatchKey::AutogradCUDA, DispatchKey::ADInplaceOrView});
  return keys == kOnCpu || keys == kOnCuda;
}

// Whether C++ may read and write the memory of a plain tensor itself. NOTE [One pass].
inline bool is_in_host_memory(const c10::TensorImpl& value) {
  return value.is_cpu();
}

// Whether kernels run in the order in which they are called, with no stream to wait for.
// NOTE [The reverse pass].
inline bool runs_in_order(c10::Device device) {
  return device.is_cpu();
}

} // namespace torchlayers
