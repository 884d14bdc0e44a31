// x.copy_(y), which y[i] = x[i] is.
#include <ATen/functorch/BatchedTensorImpl.h>

#include "dispatch/unboxed/unboxed.h"
#include "rules/batching/uniform_batch.h"
#include "values/copy.h"
#include "values/local_storages.h"

namespace torchlayers {
namespace {

using at::Tensor;

class Copy final : public c10::OperatorKernel {
 public:
  using Signature = Tensor&(Tensor&, const Tensor&, bool);

  explicit Copy(const c10::OperatorHandle& handle)
      : op_(Operator::of(handle)), typed_(handle.typed<Signature>()) {}

  Tensor& operator()(c10::DispatchKeySet keys, Tensor& x, const Tensor& y, bool non_blocking) {
    Layer* layer = vmap_on_top();
    if (layer == nullptr || !copy(*layer, x, y, non_blocking)) {
      front_boxed(op_.handle, keys, x, y, non_blocking);
    }
    return x;
  }

 private:
  bool copy(Layer& layer, const Tensor& given, const Tensor& y, bool non_blocking) const {
    const Tensor shown = layer.local_storages()->shown(given);
    const Tensor& x = shown.defined() ? shown : given;
    Alike alike(layer);
    alike.look_at(x);
    if (!alike.holds() || y.dim() > x.dim()) { // x is batched
      return false;
    }
    alike.look_at(y);
    if (!alike.is_lined_up() || !is_at_home(x, layer) || !is_at_home(y, layer)) {
      return false;
    }
    if (layer.level() == 1 &&
        copy_at_once(alike.value(x), all_of(alike.value(x)), alike.value(y))) {
      return true;
    }
    const auto call = [&] {
      Tensor into = alike.value(x);
      return typed_.call(into, alike.value(y), non_blocking);
    };
    process_typed(op_, layer, "rule", /*are_plain=*/false, call, given, y, non_blocking);
    return true;
  }

  const Operator& op_;
  c10::TypedOperatorHandle<Signature> typed_;
};

} // namespace

void register_typed_copy() {
  register_kernel<Copy>("copy_", [](const Operator&) { return true; });
}

} // namespace torchlayers
