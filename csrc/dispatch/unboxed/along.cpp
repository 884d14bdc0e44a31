// Operators of one tensor along its dimensions: reductions, softmax, views.
#include <ATen/functorch/BatchedTensorImpl.h>
#include <c10/util/SmallVector.h>

#include <initializer_list>

#include "dispatch/unboxed/unboxed.h"
#include "values/batched.h"
#include "values/local_storages.h"

namespace torchlayers {
namespace {

using at::Tensor;

// Whether it is one for all samples, and no wrapper.
bool is_unbatched(const Tensor& tensor, const Layer& layer) {
  const auto* impl = at::functorch::maybeGetBatchedImpl(tensor);
  return (impl == nullptr || impl->level() != layer.level()) && !is_wrapped_or_ended(tensor) &&
         !has_escaped(tensor, layer);
}

// A sample's dimensions, counted behind the batch.
class PhysicalDims {
 public:
  explicit PhysicalDims(int64_t rank) : rank_(rank) {}

  // Whether those asked for were a sample's.
  bool holds() const {
    return holds_;
  }
  int64_t operator()(int64_t dim) {
    holds_ = holds_ && -rank_ <= dim && dim < rank_;
    return (dim < 0 ? dim + rank_ : dim) + 1;
  }
  // None named is for the batching rule to make something of.
  at::IntArrayRef operator()(at::IntArrayRef dims) {
    holds_ = holds_ && !dims.empty();
    for (const int64_t dim : dims) {
      dims_.push_back((*this)(dim));
    }
    return dims_;
  }
  at::OptionalIntArrayRef operator()(at::OptionalIntArrayRef dims) {
    holds_ = holds_ && dims.has_value();
    return holds_ ? (*this)(*dims) : at::IntArrayRef();
  }

 private:
  int64_t rank_;
  bool holds_ = true;
  c10::SmallVector<int64_t, 4> dims_;
};

template <class Dims, class... Rest>
class AlongDims final : public c10::OperatorKernel {
 public:
  using Signature = Tensor(const Tensor&, Dims, Rest...);

  explicit AlongDims(const c10::OperatorHandle& handle)
      : op_(Operator::of(handle)), typed_(handle.typed<Signature>()) {}

  Tensor operator()(c10::DispatchKeySet keys, const Tensor& x, Dims dims, Rest... rest) {
    if (Layer* layer = vmap_on_top()) {
      const Tensor* value = batched_in_front(x, *layer);
      Tensor shown; // NOTE [Made inside]
      if (value == nullptr && layer->local_storages()->any_written()) {
        shown = layer->local_storages()->shown(x);
        value = shown.defined() ? batched_in_front(shown, *layer) : nullptr;
      }
      if (value != nullptr) {
        PhysicalDims physical(x.dim());
        const Dims moved = physical(dims);
        if (physical.holds()) {
          const auto call = [&] { return typed_.call(*value, moved, rest...); };
          const Tensor result =
              process_typed(op_, *layer, "rule", is_plain(*value), call, x, dims, rest...);
          return batched(result, /*dim=*/0, *layer);
        }
      } else if (!shown.defined() && is_unbatched(x, *layer)) {
        const auto call = [&] { return typed_.call(x, dims, rest...); };
        return process_unbatched(op_, *layer, is_plain(x), call, x, dims, rest...);
      }
    }
    return front_boxed(op_.handle, keys, x, dims, rest...);
  }

 private:
  const Operator& op_;
  c10::TypedOperatorHandle<Signature> typed_;
};

// Those that have a batching rule of ours to do what is left.
template <class Dims, class... Rest>
void add_along(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    register_kernel<AlongDims<Dims, Rest...>>(
        name, [](const Operator& op) { return op.batching_rule != nullptr; });
  }
}

} // namespace

void register_typed_along() {
  using Dtype = std::optional<at::ScalarType>;
  using Index = std::optional<c10::SymInt>;
  add_along<at::OptionalIntArrayRef, bool, Dtype>({"sum.dim_IntList", "mean.dim"});
  add_along<at::OptionalIntArrayRef, const std::optional<at::Scalar>&, bool>(
      {"var.correction", "std.correction"});
  add_along<at::IntArrayRef, bool>({"amax", "amin", "logsumexp"});
  add_along<at::IntArrayRef>({"flip"});
  add_along<int64_t, Dtype>({"softmax.int", "log_softmax.int", "cumsum"});
  add_along<int64_t, bool>({"_softmax", "_log_softmax"});
  add_along<int64_t, c10::SymInt>({"select.int"});
  add_along<int64_t, Index, Index, c10::SymInt>({"slice.Tensor"});
}

} // namespace torchlayers
