#include "typed.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "fallbacks.h"
#include "rules/batching/pointwise.h"
#include "stack.h"
#include "trace.h"
#include "wrapper.h"

namespace torchlayers {
namespace {

using at::Scalar;
using at::Tensor;

// NOTE [Typed]
// The dispatcher puts an operator's arguments in boxes on their way into a fallback, and the
// fallback takes them out on their way to the next kernel. Where little else is done that shows:
// for pointwise operators under vmap, which are called below as they are (NOTE [Batched alike]).
// So the front has for those a kernel of the operator's own signature: tensors and numbers come in
// and one tensor goes out, nothing is written to, viewed or drawn at random. Whatever else a call
// is, another layer's, an escaped tensor's, under autocast, traced, goes into boxes after all.

// The layer, if it is a vmap that may run an operator so.
VmapLayer* vmap_on_top() {
  Layer* layer = top_layer();
  const bool is_vmap = layer != nullptr && layer->kind() == Layer::Kind::Vmap;
  if (!is_vmap || tracing || autocast_is_on() || is_bypassed(kTorchFuncFront)) {
    return nullptr;
  }
  return static_cast<VmapLayer*>(layer);
}

// A tensor at home here needs no look at whether it is dead or has escaped.
bool is_at_home(const Tensor& tensor, const VmapLayer& layer) {
  return wrapper_of(tensor) == nullptr && !has_escaped(tensor, layer);
}

bool is_at_home(const Scalar&, const VmapLayer&) {
  return true;
}

template <class... Given>
class Typed final : public c10::OperatorKernel {
 public:
  explicit Typed(const c10::OperatorHandle& handle)
      : handle_(handle), typed_(handle.typed<Tensor(Given...)>()) {}

  Tensor operator()(c10::DispatchKeySet keys, Given... given) {
    if (VmapLayer* layer = vmap_on_top()) {
      Alike alike(*layer);
      (alike.look_at(given), ...);
      if (alike.holds() && (is_at_home(given, *layer) && ...)) {
        const Processing processing(*layer);
        Tensor result;
        {
          const WithoutTop below(*layer);
          result = typed_.call(alike.value(given)...);
        }
        return alike.batched(result);
      }
    }
    Args args;
    args.reserve(sizeof...(Given));
    (args.emplace_back(given), ...);
    front(handle_, keys, &args);
    return std::move(args[0]).toTensor();
  }

 private:
  c10::OperatorHandle handle_;
  c10::TypedOperatorHandle<Tensor(Given...)> typed_;
};

std::vector<std::string>& names_of_typed() {
  static auto* names = new std::vector<std::string>();
  return *names;
}

c10::OperatorName name_of(const std::string& name) {
  const size_t dot = name.find('.');
  const bool has_overload = dot != std::string::npos;
  return {"aten::" + name.substr(0, dot), has_overload ? name.substr(dot + 1) : ""};
}

template <class... Given>
void add(std::initializer_list<const char*> names) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const char* name : names) {
    const auto handle = dispatcher.findSchema(name_of(name));
    if (!handle || !Operator::of(*handle).is_pointwise) {
      continue; // to this torch
    }
    // Never taken back: Python unloads no extension.
    static auto* registered = new std::vector<c10::RegistrationHandleRAII>();
    names_of_typed().push_back("aten::" + std::string(name));
    registered->push_back(dispatcher.registerImpl(
        name_of(name),
        kFront,
        c10::KernelFunction::makeFromUnboxedFunctor<false, Typed<Given...>>(
            std::make_unique<Typed<Given...>>(*handle)),
        c10::impl::CppSignature::make<Tensor(Given...)>(),
        /*inferred_function_schema=*/nullptr,
        "torchlayers"));
  }
}

} // namespace

std::vector<std::string> typed_operators() {
  return names_of_typed();
}

void register_typed() {
  add<const Tensor&>(
      {"abs",   "neg",    "reciprocal",  "sqrt",       "rsqrt", "exp",         "exp2",   "expm1",
       "log",   "log1p",  "log2",        "log10",      "sin",   "cos",         "tan",    "asin",
       "acos",  "atan",   "sinh",        "cosh",       "tanh",  "erf",         "erfc",   "sigmoid",
       "relu",  "silu",   "mish",        "sign",       "sgn",   "ceil",        "floor",  "round",
       "trunc", "erfinv", "asinh",       "acosh",      "atanh", "hardsigmoid", "lgamma", "digamma",
       "frac",  "isnan",  "logical_not", "bitwise_not"});
  add<const Tensor&, const Tensor&>(
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
  add<const Tensor&, const Tensor&, const Scalar&>(
      {"add.Tensor", "sub.Tensor", "threshold_backward"});
  add<const Tensor&, const Tensor&, const Tensor&>({"where.self", "lerp.Tensor"});
  add<const Tensor&, const Scalar&>(
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
  add<const Tensor&, const Scalar&, const Scalar&>({"softplus", "hardtanh", "threshold"});
  add<const Tensor&, const Tensor&, const Tensor&, const Scalar&>({"addcmul", "addcdiv"});
}

} // namespace torchlayers
