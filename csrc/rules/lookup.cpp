// What the core finds of an operator in the tables of this room.
#include "core/hooks.h"
#include "rules/batching/families.h"
#include "rules/table.h"

namespace torchlayers {
namespace {

OperatorRules rules_of(const c10::OperatorName& name) {
  return {
      Table::find(name),
      Table::find_vjp(name),
      BatchingTable::find(name),
      Table::is_constant(name),
  };
}

[[maybe_unused]] const bool is_supplied = (hooks.find_rules = &rules_of, true);

} // namespace
} // namespace torchlayers
