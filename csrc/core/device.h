// Everything that depends on the device of a tensor.
#pragma once

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/TensorBase.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <optional>

#include "core/keys.h"

namespace torchlayers {

// These keys without the bits that select a device.
inline DispatchKeySet of_any_device(DispatchKeySet keys) {
  return DispatchKeySet(DispatchKeySet::RAW, keys.raw_repr() & ~uint64_t{c10::full_backend_mask});
}

// Whether a tensor with these keys (without autocast's) is an ordinary dense tensor on some device:
// not of a tensor subclass, and not a wrapper.
inline bool are_keys_of_plain(DispatchKeySet keys) {
  constexpr DispatchKeySet kPlain(
      {DispatchKey::Dense, DispatchKey::AutogradFunctionality, DispatchKey::ADInplaceOrView});
  return of_any_device(keys) == kPlain;
}

// The same for a tensor made in inference mode.
inline bool are_keys_of_plain_inference(DispatchKeySet keys) {
  return of_any_device(keys) == DispatchKeySet(DispatchKey::Dense);
}

// CPU memory, where elements are inspected and created.
inline constexpr c10::DeviceType kHost = c10::DeviceType::CPU;
// Tensors on this device have sizes and strides, but no data.
inline constexpr c10::DeviceType kWithoutNumbers = c10::DeviceType::Meta;

// The device type whose autocast state is queried besides the CPU's.
inline c10::DeviceType accelerator() {
  return at::getAccelerator().value_or(c10::DeviceType::CUDA);
}

// Whether the tensor has data, and not only a shape.
inline bool has_numbers(const at::TensorBase& tensor) {
  return !tensor.is_meta();
}

// Whether C++ code may read and write the memory of a plain tensor directly. NOTE [One pass].
inline bool is_in_host_memory(const c10::TensorImpl& value) {
  return value.is_cpu();
}

// Whether results on this device are complete when a call returns, because there are no streams.
inline bool runs_at_once(c10::Device device) {
  return device.is_cpu() || device.is_meta();
}

// Whether torch's group_norm kernels follow the memory format of their input on its device.
// Otherwise they always use the default format.
inline bool norms_keep_memory_format(const at::TensorBase& tensor) {
  return tensor.is_cpu();
}

// Whether a recurrent module's weights on this device share one buffer, as its library requires.
inline bool weights_share_memory(c10::Device device) {
  return !device.is_cpu();
}

// The single device, besides the CPU, that a computation uses. NOTE [Streams].
class OneStream {
 public:
  // Whether work done on that device and stream can be continued from here: no other device has
  // been asked about before, and the stream is the current one.
  bool goes_on(c10::Device device, c10::Stream stream) {
    if (runs_at_once(device)) {
      return true;
    }
    if (!device_) {
      device_ = device;
      current_ = c10::impl::getDeviceGuardImpl(device.type())->getStream(device);
    }
    return device == *device_ && stream == *current_;
  }

  // Nullopt if everything is on the CPU.
  std::optional<c10::Device> device() const {
    return device_;
  }

 private:
  std::optional<c10::Device> device_;
  std::optional<c10::Stream> current_;
};

} // namespace torchlayers
