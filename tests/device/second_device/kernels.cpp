// The second device's kernels: the processor's, on its memory.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "device.h"

namespace second {
namespace {

using at::Tensor;
using torch::jit::Stack;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

bool is_ours(const Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kType;
}

Tensor lying_as(const Tensor& tensor, Tensor made) {
  made.unsafeGetTensorImpl()->set_sizes_and_strides(
      tensor.sizes(), tensor.strides(), tensor.storage_offset());
  made._set_conj(tensor.is_conj());
  made._set_neg(tensor.is_neg());
  return made;
}

Tensor like(
    const Tensor& tensor, c10::Storage storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype) {
  return lying_as(
      tensor, at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, dtype));
}

// Of inference mode if its base is, whatever mode is on.
Tensor view_of(const Tensor& base, const Tensor& lying) {
  return lying_as(
      lying,
      at::detail::make_tensor<c10::TensorImpl>(
          c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), lying.dtype()));
}

// What a kernel of the processor's is called with, and what becomes of its results.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack* stack) : op_(op), stack_(*stack) {}

  void run() {
    const auto& schema = op_.schema();
    const size_t first = stack_.size() - schema.arguments().size();
    for (size_t i = first; i < stack_.size(); ++i) {
      look_at(stack_[i]);
    }
    TORCH_INTERNAL_ASSERT(device_, op_.operator_name());
    const c10::Stream stream = current_stream(device_->index());
    Work work(c10::toString(op_.operator_name()), stream);
    const Stack given(stack_.begin() + static_cast<std::ptrdiff_t>(first), stack_.end());
    for (size_t i = first; i < stack_.size(); ++i) {
      stack_[i] = on_processor(stack_[i]);
    }
    if (waits()) {
      synchronize(c10::toString(op_.operator_name()), stream);
    }
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    std::vector<Tensor> written;
    for (size_t i = 0; i < given.size(); ++i) {
      const auto* alias = schema.arguments()[i].alias_info();
      const bool is_written = alias != nullptr && alias->isWrite();
      visit(given[i], [&](const Tensor& tensor) {
        if (is_written) {
          take_over_size(tensor);
          written.push_back(tensor);
        } else if (!is_of_views()) {
          work.reads(*tensor.unsafeGetTensorImpl());
        }
      });
    }
    for (const Tensor& tensor : written) {
      work.writes(*tensor.unsafeGetTensorImpl());
    }
    bool is_view = !schema.returns().empty();
    for (size_t i = stack_.size() - schema.returns().size(); i < stack_.size(); ++i) {
      stack_[i] = on_device(stack_[i], work, is_view);
    }
    if (!is_view || !written.empty()) {
      note_launch(c10::toString(op_.operator_name()), stream);
    }
  }

 private:
  template <class Visit>
  static void visit(const c10::IValue& value, const Visit& visit) {
    if (value.isTensor()) {
      if (is_ours(value.toTensor())) {
        visit(value.toTensor());
      }
    } else if (value.isList()) {
      for (const c10::IValue& member : value.toListRef()) {
        Call::visit(member, visit);
      }
    }
  }

  // All on one device, but for scalars of the processor's, and for indices.
  void look_at(const c10::IValue& value) {
    if (value.isDevice() && value.toDevice().type() == kType) {
      device_ =
          value.toDevice().has_index() ? value.toDevice() : c10::Device(kType, current_device());
    } else if (value.isTensor() && value.toTensor().defined()) {
      const Tensor& tensor = value.toTensor();
      if (is_ours(tensor)) {
        TORCH_CHECK(
            !device_ || *device_ == tensor.device(),
            "Expected all tensors to be on the same device, but found ",
            *device_,
            " and ",
            tensor.device(),
            " in ",
            op_.operator_name());
        device_ = tensor.device();
      } else {
        TORCH_CHECK(
            tensor.dim() == 0 || op_.operator_name().name == "aten::record_stream",
            "Expected all tensors to be on the same device, but found one on ",
            tensor.device(),
            " in ",
            op_.operator_name());
      }
    } else if (value.isTensorList()) {
      for (const c10::IValue& member : value.toListRef()) {
        look_at(member);
      }
    } else if (value.isList()) {
      visit(value, [&](const Tensor& tensor) { look_at(tensor); });
    }
  }

  static c10::DeviceIndex current_device() {
    return c10::impl::getDeviceGuardImpl(kType)->getDevice().index();
  }

  c10::IValue on_processor(const c10::IValue& value) {
    if (value.isDevice()) {
      return c10::Device(at::kCPU);
    }
    if (value.isTensor()) {
      return is_ours(value.toTensor()) ? alias(value.toTensor()) : value;
    }
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const c10::IValue& member : value.toListRef()) {
        list.push_back(on_processor(member).toTensor());
      }
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const c10::IValue& member : value.toListRef()) {
        list.push_back(
            member.isNone() ? std::nullopt : std::optional(on_processor(member).toTensor()));
      }
      return list;
    }
    return value;
  }

  // Whether it reads and writes no memory, which may be closed: mutable_data() would raise.
  bool is_of_views() const {
    const auto& returns = op_.schema().returns();
    return !returns.empty() && std::ranges::all_of(returns, [](const auto& result) {
      return result.alias_info() != nullptr && !result.alias_info()->isWrite();
    });
  }

  // The same memory, as the processor's.
  Tensor alias(const Tensor& tensor) {
    if (tensor._is_zerotensor()) {
      aliases_.emplace_back(
          tensor, at::_efficientzerotensor(tensor.sizes(), tensor.options().device(at::kCPU)));
      return aliases_.back().second;
    }
    auto* ours = tensor.storage().unsafeGetStorageImpl();
    for (const auto& [storage, theirs] : storages_) {
      if (storage == ours) {
        return remember(tensor, theirs);
      }
    }
    void* start = is_of_views() ? ours->_mutable_data_ptr_no_checks().get() : ours->mutable_data();
    c10::DataPtr data(reachable(start), c10::Device(at::kCPU));
    storages_.emplace_back(
        ours,
        c10::Storage(
            c10::Storage::use_byte_size_t(),
            ours->nbytes(),
            std::move(data),
            c10::GetAllocator(at::kCPU),
            /*resizable=*/true));
    return remember(tensor, storages_.back().second);
  }

  Tensor remember(const Tensor& tensor, const c10::Storage& storage) {
    Tensor made = like(tensor, storage, c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    aliases_.emplace_back(tensor, made);
    return made;
  }

  // What a kernel has resized, as out= allows.
  void take_over_size(const Tensor& tensor) {
    for (const auto& [ours, theirs] : aliases_) {
      if (!ours.is_same(tensor)) {
        continue;
      }
      if (theirs.sizes() == ours.sizes() && theirs.strides() == ours.strides()) {
        return;
      }
      if (theirs.storage().data() != reachable(ours.storage().mutable_data())) {
        at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(
            ours.storage(), theirs.storage().nbytes());
        std::memcpy(
            reachable(ours.storage().mutable_data()),
            theirs.storage().data(),
            theirs.storage().nbytes());
      }
      ours.unsafeGetTensorImpl()->set_sizes_and_strides(
          theirs.sizes(), theirs.strides(), theirs.storage_offset());
      return;
    }
  }

  c10::IValue on_device(const c10::IValue& value, Work& work, bool& is_view) {
    if (value.isTensor()) {
      return value.toTensor().defined() ? moved(value.toTensor(), work, is_view) : value;
    }
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const c10::IValue& member : value.toListRef()) {
        list.push_back(on_device(member, work, is_view).toTensor());
      }
      return list;
    }
    is_view = is_view && value.isTensor();
    return value;
  }

  Tensor moved(const Tensor& result, Work& work, bool& is_view) {
    for (const auto& [ours, theirs] : aliases_) {
      if (theirs.is_same(result)) {
        return ours;
      }
    }
    for (const auto& [ours, theirs] : aliases_) {
      if (result.storage().is_alias_of(theirs.storage())) {
        return view_of(ours, result);
      }
    }
    is_view = false;
    if (result._is_zerotensor()) {
      return at::_efficientzerotensor(result.sizes(), result.options().device(*device_));
    }
    const c10::DeviceGuard guard(*device_);
    const size_t size = result.storage().nbytes();
    auto* allocator = c10::GetAllocator(kType);
    c10::Storage storage(
        c10::Storage::use_byte_size_t(), size, allocator->allocate(size), allocator, true);
    if (size > 0) {
      std::memcpy(reachable(storage.mutable_data()), result.storage().data(), size);
    }
    Tensor made = like(result, std::move(storage), kKeys, result.dtype());
    work.writes(*made.unsafeGetTensorImpl());
    return made;
  }

  // Where a GPU's kernel tells the host something: how many elements a result has, or a number.
  bool waits() const {
    static const std::set<std::string> names{
        "aten::_local_scalar_dense",
        "aten::nonzero",
        "aten::masked_select",
        "aten::equal",
        "aten::_unique",
        "aten::_unique2",
        "aten::unique_dim",
        "aten::unique_consecutive",
        "aten::bincount",
        "aten::repeat_interleave"};
    if (names.count(op_.operator_name().name) > 0) {
      return true;
    }
    if (op_.operator_name().name.rfind("aten::index", 0) != 0) {
      return false;
    }
    const auto is_mask = [](const auto& pair) {
      return pair.first.scalar_type() == at::kBool || pair.first.scalar_type() == at::kByte;
    };
    return std::any_of(aliases_.begin(), aliases_.end(), [&](const auto& pair) {
      return is_mask(pair) && !pair.first.is_same(aliases_.front().first);
    });
  }

  const c10::OperatorHandle& op_;
  Stack& stack_;
  std::optional<c10::Device> device_;
  std::vector<std::pair<c10::StorageImpl*, c10::Storage>> storages_;
  std::vector<std::pair<Tensor, Tensor>> aliases_;
};

void kernel(const c10::OperatorHandle& op, Stack* stack) {
  Call(op, stack).run();
}

Tensor empty(
    at::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(
      size, c10::GetAllocator(kType), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    at::IntArrayRef size,
    at::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(
      size, stride, c10::GetAllocator(kType), kKeys, c10::dtype_or_default(dtype));
}

// Zeros without memory, which forward AD takes for tangents that are absent.
struct Nothing final : c10::Allocator {
  c10::DataPtr allocate(size_t) override {
    return {nullptr, c10::impl::getDeviceGuardImpl(kType)->getDevice()};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &c10::detail::deleteNothing;
  }
  void copy_data(void*, const void*, size_t) const override {}
};

Tensor efficient_zeros(
    at::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>) {
  static auto& nothing = *new Nothing;
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(
      size,
      &nothing,
      kKeys | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor),
      c10::dtype_or_default(dtype),
      std::nullopt);
}

Tensor on_host(const Tensor& tensor) {
  if (!is_ours(tensor)) {
    return tensor;
  }
  c10::DataPtr data(reachable(tensor.storage().mutable_data()), c10::Device(at::kCPU));
  c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(data));
  return like(
      tensor, std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
}

Tensor copy_from(const Tensor& source, const Tensor& target, bool non_blocking) {
  const c10::Stream stream = current_stream((is_ours(source) ? source : target).device().index());
  if (is_ours(source) && is_ours(target) && source.device() != target.device()) {
    wait_for(stream, current_stream(target.device().index()));
  }
  {
    Work work("aten::copy_", stream);
    work.reads(*source.unsafeGetTensorImpl());
    work.writes(*target.unsafeGetTensorImpl());
    on_host(target).copy_(on_host(source));
  }
  note_launch("aten::copy_", stream);
  if (!is_ours(target) || (!is_ours(source) && !non_blocking)) {
    synchronize("a copy to or from the host", stream);
  } else if (is_ours(source) && source.device() != target.device()) {
    wait_for(current_stream(target.device().index()), stream);
  }
  return target;
}

const Tensor& resize_(
    const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  const auto bytes = (c10::multiply_integers(size) + self.storage_offset()) * self.itemsize();
  if (bytes > self.storage().nbytes()) {
    const c10::DeviceGuard guard(self.device());
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
  }
  impl->set_sizes_contiguous(size);
  if (format && *format != at::MemoryFormat::Preserve) {
    impl->empty_tensor_restride(*format);
  }
  return self;
}

Tensor& set_storage(
    Tensor& self,
    at::Storage storage,
    int64_t offset,
    at::IntArrayRef size,
    at::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  if (stride.data() == nullptr) {
    impl->set_sizes_contiguous(size);
    impl->set_storage_offset(offset);
  } else {
    impl->set_sizes_and_strides(size, stride, offset);
  }
  return self;
}

Tensor& set_whole_storage(Tensor& self, at::Storage storage) {
  const auto count = static_cast<int64_t>(storage.nbytes()) / self.itemsize();
  return set_storage(self, std::move(storage), 0, count, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(
      self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

void record_stream(Tensor& self, c10::Stream stream) {
  c10::impl::getDeviceGuardImpl(kType)->recordDataPtrOnStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&kernel>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_efficientzerotensor", &efficient_zeros);
  library.impl("_copy_from", &copy_from);
  library.impl("resize_", &resize_);
  library.impl("set_.source_Storage", &set_whole_storage);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("record_stream", &record_stream);
  // torch would ask a device of this kind for convolutions that nobody else has, and has a kernel
  // of mse_loss's out= that a result without dimensions doesn't fit.
  for (const char* name : {"convolution", "convolution_backward", "mse_loss"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&kernel>());
  }
  // A GPU has kernels of these, and other devices what they are made of.
  for (const char* name :
       {"addr", "mish_backward", "native_group_norm", "native_layer_norm", "silu_backward"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&kernel>());
  }
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m){KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
                                                     KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)}

// torch makes a copy of what is conjugated before it asks for a copy: without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

} // namespace
} // namespace second
