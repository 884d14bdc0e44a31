// All that depends on the device that tensors are on.
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

// The same keys of whichever device.
inline DispatchKeySet of_any_device(DispatchKeySet keys) {
  return DispatchKeySet(DispatchKeySet::RAW, keys.raw_repr() & ~uint64_t{c10::full_backend_mask});
}

// Whether a tensor with these keys, autocast's left out, is nothing but numbers in the memory of
// some device: no class of tensors of its own, and nobody's wrapper.
inline bool are_keys_of_plain(DispatchKeySet keys) {
  constexpr DispatchKeySet kPlain(
      {DispatchKey::Dense, DispatchKey::AutogradFunctionality, DispatchKey::ADInplaceOrView});
  return of_any_device(keys) == kPlain;
}

// The same of a tensor made in inference mode.
inline bool are_keys_of_plain_inference(DispatchKeySet keys) {
  return of_any_device(keys) == DispatchKeySet(DispatchKey::Dense);
}

// The processor's memory, where numbers are looked at and made.
inline constexpr c10::DeviceType kHost = c10::DeviceType::CPU;
// Where tensors have sizes and strides alone.
inline constexpr c10::DeviceType kWithoutNumbers = c10::DeviceType::Meta;

// What autocast is asked of beside the processor.
inline c10::DeviceType accelerator() {
  return at::getAccelerator().value_or(c10::DeviceType::CUDA);
}

// Whether there are numbers, and not only a shape.
inline bool has_numbers(const at::TensorBase& tensor) {
  return !tensor.is_meta();
}

// Whether C++ may read and write the memory of a plain tensor itself. NOTE [One pass].
inline bool is_in_host_memory(const c10::TensorImpl& value) {
  return value.is_cpu();
}

// Whether what is computed there is there when the call returns: there are no streams.
inline bool runs_at_once(c10::Device device) {
  return device.is_cpu() || device.is_meta();
}

// Whether torch's kernels of group_norm go by the memory format that a tensor has, or by the
// default one alone.
inline bool norms_keep_memory_format(const at::TensorBase& tensor) {
  return tensor.is_cpu();
}

// Whether a recurrent module's weights are parts of one memory there, as its library wants them.
inline bool weights_share_memory(c10::Device device) {
  return !device.is_cpu();
}

// The one device, beside the processor, that a computation is on. NOTE [Streams].
class OneStream {
 public:
  // Whether what was done there, on that stream, can be gone on with here: no other device was
  // asked about before, and the stream is the current one.
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

  // None: all is on the processor.
  std::optional<c10::Device> device() const {
    return device_;
  }

 private:
  std::optional<c10::Device> device_;
  std::optional<c10::Stream> current_;
};

} // namespace torchlayers
