// The core's lookups in the rule tables of this folder.
#include "rules/lookup.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <string_view>
#include <utility>

#include "core/callbacks.h"
#include "rules/batching/families.h"
#include "rules/plain_autograd.h"
#include "rules/small_tensors/small_kernels.h"
#include "rules/table.h"

namespace torchlayers {
namespace {

OperatorRules of_tables(const c10::OperatorName& name) {
  return {
      Table::find(name),
      Table::find_vjp(name),
      BatchingTable::find(name),
      find_small_kernel(name),
      Table::is_constant(name),
  };
}

} // namespace

std::optional<c10::OperatorName> view_copied_by(const c10::OperatorName& name) {
  constexpr std::string_view kSuffix = "_copy";
  if (!name.name.ends_with(kSuffix) || Table::find(name) != nullptr) {
    return std::nullopt;
  }
  c10::OperatorName view(
      name.name.substr(0, name.name.size() - kSuffix.size()), name.overload_name);
  const auto found = c10::Dispatcher::singleton().findSchema(view);
  const bool is_view = found && !found->schema().is_mutable() &&
                       !found->schema().arguments().empty() &&
                       found->schema().arguments()[0].alias_info() != nullptr;
  return is_view ? std::optional(std::move(view)) : std::nullopt;
}

namespace {

OperatorRules rules_of(const c10::OperatorName& name) {
  OperatorRules rules = of_tables(name_in_table(name));
  rules.plain_form = find_plain_form(name);
  return rules;
}

[[maybe_unused]] const bool is_supplied = (callbacks.find_rules = &rules_of, true);

} // namespace
} // namespace torchlayers
