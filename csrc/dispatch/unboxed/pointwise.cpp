// Pointwise operators.
#include <initializer_list>

#include "core/small_kernel.h"
#include "dispatch/unboxed/unboxed.h"
#include "rules/batching/uniform_batch.h"

namespace torchlayers {
namespace {

using at::Scalar;
using at::Tensor;

bool is_at_home(const Scalar&, const Layer&) {
  return true;
}

bool is_plain_or_number(const Tensor& tensor) {
  return is_plain(tensor);
}

bool is_plain_or_number(const Scalar&) {
  return true;
}

template <class... Given>
class Pointwise final : public c10::OperatorKernel {
 public:
  using Signature = Tensor(Given...);

  explicit Pointwise(const c10::OperatorHandle& handle)
      : op_(Operator::of(handle)), typed_(handle.typed<Tensor(Given...)>()) {}

  Tensor operator()(c10::DispatchKeySet keys, Given... given) {
    if (Layer* layer = vmap_on_top()) {
      Alike alike(*layer);
      (alike.look_at(given), ...);
      const bool is_batched = alike.any_batched();
      if ((alike.holds() || !is_batched) && (is_at_home(given, *layer) && ...)) {
        if (is_batched && op_.small_kernel != nullptr && layer->level() == 1) {
          if (const Tensor result = in_small_kernel(alike.value(given)...); result.defined()) {
            return alike.batched(result);
          }
        }
        const bool are_plain = (is_plain_or_number(alike.value(given)) && ...);
        const auto call = [&] { return typed_.call(alike.value(given)...); };
        return is_batched ? alike.batched(
                                process_typed(op_, *layer, "send_down", are_plain, call, given...))
                          : process_unbatched(op_, *layer, are_plain, call, given...);
      }
    }
    return front_boxed(op_.handle, keys, given...);
  }

 private:
  Tensor in_small_kernel(const auto&... values) const {
    if constexpr (requires { op_.small_kernel->compute(values...); }) {
      return op_.small_kernel->compute(values...);
    }
    return {};
  }

  const Operator& op_;
  c10::TypedOperatorHandle<Tensor(Given...)> typed_;
};

template <class... Given>
void add_pointwise(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    register_kernel<Pointwise<Given...>>(name, [](const Operator& op) { return op.is_pointwise; });
  }
}

} // namespace

void register_typed_pointwise() {
  add_pointwise<const Tensor&>(
      {"abs",   "neg",    "reciprocal",  "sqrt",       "rsqrt", "exp",         "exp2",   "expm1",
       "log",   "log1p",  "log2",        "log10",      "sin",   "cos",         "tan",    "asin",
       "acos",  "atan",   "sinh",        "cosh",       "tanh",  "erf",         "erfc",   "sigmoid",
       "relu",  "silu",   "mish",        "sign",       "sgn",   "ceil",        "floor",  "round",
       "trunc", "erfinv", "asinh",       "acosh",      "atanh", "hardsigmoid", "lgamma", "digamma",
       "frac",  "isnan",  "logical_not", "bitwise_not"});
  add_pointwise<const Tensor&, const Tensor&>(
      {"mul.Tensor",
       "div.Tensor",
       "pow.Tensor_Tensor",
       "maximum",
       "minimum",
       "atan2",
       "fmod.Tensor",
       "remainder.Tensor",
       "hypot",
       "fmax",
       "fmin",
       "xlogy.Tensor",
       "copysign.Tensor",
       "eq.Tensor",
       "ne.Tensor",
       "lt.Tensor",
       "le.Tensor",
       "gt.Tensor",
       "ge.Tensor",
       "logical_and",
       "logical_or",
       "logical_xor",
       "bitwise_and.Tensor",
       "bitwise_or.Tensor",
       "sigmoid_backward",
       "tanh_backward"});
  add_pointwise<const Tensor&, const Tensor&, const Scalar&>(
      {"add.Tensor", "sub.Tensor", "threshold_backward"});
  add_pointwise<const Tensor&, const Tensor&, const Tensor&>({"where.self", "lerp.Tensor"});
  add_pointwise<const Tensor&, const Scalar&>(
      {"pow.Tensor_Scalar",
       "eq.Scalar",
       "ne.Scalar",
       "lt.Scalar",
       "le.Scalar",
       "gt.Scalar",
       "ge.Scalar",
       "clamp_min",
       "clamp_max",
       "leaky_relu",
       "fmod.Scalar",
       "remainder.Scalar"});
  add_pointwise<const Tensor&, const Scalar&, const Scalar&>({"softplus", "hardtanh", "threshold"});
  add_pointwise<const Tensor&, const Tensor&, const Tensor&, const Scalar&>({"addcmul", "addcdiv"});
}

} // namespace torchlayers
