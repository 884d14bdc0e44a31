#include "core/operator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "core/callbacks.h"
#include "core/keys.h"
#include "core/small_kernel.h"

namespace torchlayers {
namespace {

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

bool find_in_place(const c10::FunctionSchema& schema) {
  const auto& args = schema.arguments();
  if (!schema.is_mutable() || schema.returns().size() != 1 || args.empty() ||
      !is_written(args[0])) {
    return false;
  }
  return is_written(schema.returns()[0]) &&
         std::none_of(args.begin() + 1, args.end(), [](const c10::Argument& argument) {
           return argument.alias_info() != nullptr;
         });
}

// Whether the operator takes the same arguments as this in-place one, and writes to none.
bool is_functional_of(const c10::FunctionSchema& schema, const c10::FunctionSchema& in_place) {
  const auto& args = schema.arguments();
  const auto& others = in_place.arguments();
  if (schema.is_mutable() || args.size() != others.size()) {
    return false;
  }
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].alias_info() || *args[i].type() != *others[i].type()) {
      return false; // a view (squeeze of squeeze_) changes how its argument is seen
    }
  }
  return true;
}

// add for add_: the same arguments, and a new tensor as result. For pow_.Scalar it is
// pow.Tensor_Scalar, not pow.Scalar.
std::optional<c10::OperatorHandle> find_functional(const c10::FunctionSchema& schema) {
  if (!find_in_place(schema) || schema.name().back() != '_') {
    return std::nullopt;
  }
  const auto name = schema.name().substr(0, schema.name().size() - 1);
  const auto& overload = schema.overload_name();
  for (const auto& candidate : {overload, "Tensor_" + overload, std::string()}) {
    const auto found = c10::Dispatcher::singleton().findSchema({name, candidate});
    if (found && is_functional_of(found->schema(), schema)) {
      return found;
    }
  }
  return std::nullopt;
}

std::optional<size_t> find_aliased_result(const c10::FunctionSchema& schema, size_t arg) {
  for (size_t result = 0; result < schema.returns().size(); ++result) {
    if (schema.may_contain_alias(
            {c10::SchemaArgType::input, arg}, {c10::SchemaArgType::output, result})) {
      return result;
    }
  }
  return std::nullopt;
}

bool is_any_of(const std::string& name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// Whether the dispatcher looks into an argument of this type for tensors.
bool is_seen(const c10::TypePtr& type) {
  return type->isSubtypeOf(*c10::TensorType::get()) ||
         type->isSubtypeOf(*c10::OptionalType::ofTensor()) ||
         type->isSubtypeOf(*c10::ListType::ofTensors()) ||
         type->isSubtypeOf(*c10::ListType::ofOptionalTensors());
}

bool may_hold_tensors(const c10::TypePtr& type) {
  const auto kind = type->kind();
  if (kind == c10::TypeKind::TensorType || kind == c10::TypeKind::AnyType) {
    return true;
  }
  return std::ranges::any_of(type->containedTypes(), &may_hold_tensors);
}

bool may_hide_tensors(const c10::Argument& argument) {
  return !is_seen(argument.type()) && may_hold_tensors(argument.type());
}

bool is_users(const c10::OperatorHandle& op) {
  const auto name = op.schema().getNamespace();
  return name != "aten" && name != "prims";
}

bool is_of_distributed(const c10::OperatorHandle& op) {
  const auto name = op.schema().getNamespace();
  return name == "c10d" || name == "_c10d_functional" || name == "torchlayers";
}

bool is_without_derivative(const std::string& name) {
  constexpr std::string_view space = "aten::";
  if (!name.starts_with(space)) {
    return false;
  }
  const std::string_view rest = std::string_view(name).substr(space.size());
  return rest == "special_airy_ai" || rest.starts_with("special_bessel_") ||
         rest.starts_with("special_modified_bessel_") ||
         rest.starts_with("special_scaled_modified_bessel_") ||
         rest.starts_with("special_spherical_bessel_") ||
         (rest.starts_with("special_") && rest.find("_polynomial_") != std::string_view::npos);
}

// Since 2.15, torch intercepts to_dense by kernels in Python at two keys, because MKL-DNN's format
// does not show in a fake tensor. The one at torch.func's front knows reverse mode alone, and drops
// tangents and batches; the operator's own composite kernel suits every layer.
bool is_intercepted_for_fakes(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::PythonTLSSnapshot) &&
         op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
}

bool has_autograd_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::Autograd) ||
         op.hasKernelForAnyDispatchKey(c10::autograd_dispatch_keyset);
}

bool find_pointwise(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const bool is_made_of_others = op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
  const bool asks_for_more =
      std::ranges::any_of(schema.arguments(), [](const c10::Argument& argument) {
        return is_any_of(argument.name(), {"memory_format", "generator"});
      });
  return op.hasTag(at::Tag::pointwise) && schema.getNamespace() == "aten" && !schema.is_mutable() &&
         schema.returns().size() == 1 &&
         schema.returns()[0].type()->isSubtypeOf(*c10::TensorType::get()) && !is_made_of_others &&
         !asks_for_more;
}

// All operators met so far. NOTE [Operators come and go]: torch.library can remove one and put
// another at its address. A removed operator's facts stay allocated (another thread may be reading
// them) but are no longer found, and a new generation makes every thread clear its cache.
class KnownOperators final : public c10::OpRegistrationListener {
 public:
  static KnownOperators& instance() {
    static auto* operators = [] {
      auto owned = std::make_unique<KnownOperators>();
      auto* raw = owned.get();
      static auto handle = c10::Dispatcher::singleton().addRegistrationListener(std::move(owned));
      return raw;
    }();
    return *operators;
  }

  const Operator& find_or_add(const c10::OperatorHandle& handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& entry = operators_[&handle.schema()];
    if (!entry) {
      entry = std::make_unique<Operator>(handle);
    }
    return *entry;
  }

  static uint64_t generation() {
    return generation_.load(std::memory_order_acquire);
  }

  void onOperatorRegistered(const c10::OperatorHandle&) override {}

  void onOperatorDeregistered(const c10::OperatorHandle& handle) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = operators_.find(&handle.schema());
    if (it != operators_.end()) {
      removed_.push_back(std::move(it->second));
      operators_.erase(it);
      generation_.fetch_add(1, std::memory_order_release);
    }
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<Operator>> operators_;
  std::vector<std::unique_ptr<Operator>> removed_;
  static inline std::atomic<uint64_t> generation_{0};
};

using Schema = const c10::FunctionSchema*;

struct ThreadCache {
  uint64_t generation = 0;
  ska::flat_hash_map<Schema, const Operator*> operators;
};

// The operators found last, one for each remainder of the schema's address: no more than a
// comparison where a program calls few operators.
struct RecentOperators {
  struct Entry {
    Schema schema;
    const Operator* op;
  };

  uint64_t generation;
  std::array<Entry, 64> entries;

  Entry& entry_of(Schema schema) {
    const auto address = reinterpret_cast<uintptr_t>(schema);
    return entries[(address / 64 ^ address / 4096) % entries.size()];
  }
};

const Operator& find_in_thread_cache(const c10::OperatorHandle& handle) {
  auto& operators = KnownOperators::instance();
  thread_local ThreadCache cache;
  if (cache.generation != operators.generation()) {
    cache.generation = operators.generation();
    cache.operators.clear();
  }
  auto it = cache.operators.find(&handle.schema());
  if (it != cache.operators.end()) {
    return *it->second;
  }
  const Operator& op = operators.find_or_add(handle);
  cache.operators.emplace(&handle.schema(), &op);
  return op;
}

} // namespace

Operator::Operator(const c10::OperatorHandle& op)
    : Operator(op, callbacks.find_rules(op.operator_name())) {}

Operator::Operator(const c10::OperatorHandle& op, const OperatorRules& rules)
    : handle(op),
      num_args(op.schema().arguments().size()),
      num_returns(op.schema().returns().size()),
      is_in_place(find_in_place(op.schema())),
      functional(find_functional(op.schema())),
      aliases(false),
      is_random(
          op.hasTag(at::Tag::nondeterministic_seeded) ||
          op.hasKernelForDispatchKey(DispatchKey::FuncTorchVmapMode)),
      reads_number(is_any_of(
          op.operator_name().name,
          {"aten::item", "aten::is_nonzero", "aten::_local_scalar_dense"})),
      has_torch_func_kernel(
          op.hasKernelForDispatchKey(kTorchFuncFront) && !is_intercepted_for_fakes(op)),
      is_composite(op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)),
      is_composite_under_vmap(
          is_composite && op.hasKernelForDispatchKey(DispatchKey::FuncTorchBatchedDecomposition)),
      is_custom(op.schema().getNamespace() != "aten"),
      has_custom_autograd(is_users(op) && has_autograd_kernel(op)),
      lacks_autograd(is_users(op) && !has_autograd_kernel(op) && !is_composite),
      lacks_derivative(is_without_derivative(op.operator_name().name)),
      is_collective(is_of_distributed(op)),
      is_pointwise(rules.batching == nullptr && find_pointwise(op)),
      is_constant(rules.is_constant),
      always_wraps(is_any_of(op.operator_name().name, {"aten::lift_fresh", "aten::alias"})),
      lifts(op.operator_name().name == "aten::lift_fresh"),
      detaches(op.operator_name().name == "aten::detach"),
      detaches_in_place(op.operator_name().name == "aten::detach_"),
      makes_dual(is_any_of(op.operator_name().name, {"aten::_make_dual", "aten::_fw_primal"})),
      unpacks_dual(op.operator_name().name == "aten::_unpack_dual"),
      jvp_rule(rules.jvp),
      vjp_rule(rules.vjp),
      batching_rule(rules.batching),
      small_kernel(rules.small_kernel),
      plain_form(rules.plain_form),
      hides_results(std::ranges::any_of(op.schema().returns(), &may_hide_tensors)),
      aliased_result(num_args) {
  for (size_t i = 0; i < num_args; ++i) {
    if (may_hide_tensors(schema().arguments()[i])) {
      hidden_args.push_back(i);
    }
    // record_stream's schema declares a write, but it only tells the allocator which stream reads.
    if (is_written(schema().arguments()[i]) && op.operator_name().name != "aten::record_stream") {
      written_args.push_back(i);
    }
    // torch assumes that any two lists may share members, but functional collectives return new
    // ones.
    if (!is_collective || schema().is_mutable()) {
      aliased_result[i] = find_aliased_result(schema(), i);
    }
    aliases = aliases || aliased_result[i];
  }
  aliases = aliases || !written_args.empty();
}

void Operator::call(Args& args) const {
  const auto& included = thread_keys().included();
  if (small_kernel != nullptr && !included.has_any(kOurKeys | kTorchFuncKeys)) {
    at::Tensor result = small_kernel->compute_boxed(last(args, num_args));
    if (result.defined()) {
      drop(args, num_args);
      args.emplace_back(std::move(result));
      return;
    }
  } else if (plain_form != nullptr && !included.has_any(kOurKeys) && plain_form(*this, args)) {
    return;
  }
  handle.callBoxed(&args);
}

const Operator& Operator::of(const c10::OperatorHandle& handle) {
  thread_local constinit RecentOperators recent{};
  const uint64_t generation = KnownOperators::generation();
  if (recent.generation != generation) {
    recent = {generation, {}};
  }
  auto& entry = recent.entry_of(&handle.schema());
  if (entry.schema != &handle.schema()) {
    entry = {&handle.schema(), &find_in_thread_cache(handle)};
  }
  return *entry.op;
}

} // namespace torchlayers
