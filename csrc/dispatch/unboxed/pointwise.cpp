// Pointwise operators.
#include <string>
#include <unordered_map>

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
void register_pointwise(const c10::OperatorHandle& handle) {
  register_kernel<Pointwise<Given...>>(handle);
}

// A letter an argument: T for a tensor, S for a number; "" if there is any other.
std::string letters_of(const c10::FunctionSchema& schema) {
  std::string letters;
  for (const c10::Argument& argument : schema.arguments()) {
    switch (argument.type()->kind()) {
      case c10::TypeKind::TensorType:
        letters += 'T';
        break;
      case c10::TypeKind::NumberType:
        letters += 'S';
        break;
      default:
        return "";
    }
  }
  return letters;
}

} // namespace

// Those of these signatures that torch tags as pointwise. Each signature is a class to compile, so
// rare ones are left out.
void register_typed_pointwise() {
  using Register = void (*)(const c10::OperatorHandle&);
  const std::unordered_map<std::string, Register> by_letters{
      {"T", &register_pointwise<const Tensor&>},
      {"TT", &register_pointwise<const Tensor&, const Tensor&>},
      {"TS", &register_pointwise<const Tensor&, const Scalar&>},
      {"TTS", &register_pointwise<const Tensor&, const Tensor&, const Scalar&>},
      {"TTT", &register_pointwise<const Tensor&, const Tensor&, const Tensor&>},
      {"TSS", &register_pointwise<const Tensor&, const Scalar&, const Scalar&>},
      {"TTTS", &register_pointwise<const Tensor&, const Tensor&, const Tensor&, const Scalar&>},
  };
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto handle = dispatcher.findSchema(name);
    if (!handle || !handle->hasTag(at::Tag::pointwise)) {
      continue;
    }
    const auto entry = by_letters.find(letters_of(handle->schema()));
    if (entry != by_letters.end() && Operator::of(*handle).is_pointwise) {
      entry->second(*handle);
    }
  }
}

} // namespace torchlayers
