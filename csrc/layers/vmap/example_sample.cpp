#include "layers/vmap/example_sample.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "core/args.h"
#include "core/aten_functions.h"
#include "core/device.h"
#include "core/keys.h"
#include "core/skip_autograd.h"
#include "core/without_function_modes.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

// While it lives, operators bypass all layers, modes and autograd, and warnings are dropped.
class Alone {
 public:
  Alone() = default;
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

 private:
  class Silent final : public c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };

  WithoutFunctionModes no_modes_;
  Silent silent_;
  c10::WarningUtils::WarningHandlerGuard warnings_{&silent_};
  c10::impl::ForceDispatchKeyGuard keys_{
      DispatchKeySet(DispatchKey::BackendSelect),
      kBetween | kOurKeys | kTorchFuncKeys | DispatchKeySet(DispatchKey::Python)};
};

// How many elements its memory needs; nullopt if there can be no stand-in for the tensor.
std::optional<int64_t> reach_of(const at::Tensor& tensor) {
  constexpr int64_t kMost = 1 << 24;
  if (tensor.layout() != at::kStrided || holder_of(tensor).is_nested() ||
      tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    return std::nullopt;
  }
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) == 0) {
      return 0;
    }
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  return last < kMost ? std::optional(last + 1) : std::nullopt;
}

at::Tensor laid_out_like(const at::Tensor& tensor) {
  c10::SymInt count = tensor.sym_storage_offset() + 1;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    count += (tensor.sym_size(dim) - 1).max(0) * tensor.sym_stride(dim);
  }
  at::Tensor other = at::empty_symint({count}, tensor.options().device(kWithoutNumbers));
  other.unsafeGetTensorImpl()->set_sizes_and_strides(
      tensor.sym_sizes(), tensor.sym_strides(), tensor.sym_storage_offset());
  return other;
}

} // namespace

Args run_on_meta(const Operator& op, const Args& args) {
  Args others = last(args, op.num_args).vec();
  const Alone alone;
  change_tensors(
      others, op.num_args, [](const at::Tensor& tensor, size_t) { return laid_out_like(tensor); });
  op.handle.callBoxed(&others);
  return others;
}

std::optional<Args> run_on_stand_in(const Operator& op, const Args& args, int64_t number) {
  const auto has_no_reach = [](const at::Tensor& tensor) { return !reach_of(tensor); };
  if (any_tensor(args, op.num_args, has_no_reach)) {
    return std::nullopt;
  }
  Args sample = last(args, op.num_args).vec();
  const Alone alone;
  change_tensors(sample, op.num_args, [&](const at::Tensor& tensor, size_t) {
    if (op.written_args.empty() && is_plain(tensor) &&
        is_in_host_memory(*tensor.unsafeGetTensorImpl())) {
      return tensor; // not batched
    }
    return at::full({*reach_of(tensor)}, number, tensor.options().device(kHost))
        .as_strided(tensor.sizes(), tensor.strides());
  });
  op.handle.callBoxed(&sample);
  return sample;
}

} // namespace torchlayers
