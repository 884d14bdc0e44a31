#include "rules/batching/families.h"

#include "rules/operands.h"

namespace torchlayers {

void BatchingTable::add(std::initializer_list<const char*> names, BatchingRule rule) {
  for (const char* name : names) {
    const bool is_new = rules_.emplace(in_namespace(name), rule).second;
    TORCH_INTERNAL_ASSERT(is_new, "two batching rules for ", name);
  }
}

const BatchingTable& BatchingTable::instance() {
  static const BatchingTable* table = [] {
    auto* all = new BatchingTable(); // outlives threads that end late
    add_batched_pointwise(*all);
    add_batched_shapes(*all);
    add_batched_strided(*all);
    add_batched_dim_ops(*all);
    add_batched_reductions(*all);
    add_batched_products(*all);
    add_batched_linear_solve(*all);
    add_batched_distances(*all);
    add_batched_conv_pool(*all);
    add_batched_losses(*all);
    add_batched_norms(*all);
    add_batched_indexing(*all);
    add_batched_tensor_lists(*all);
    add_batched_masked(*all);
    add_batched_collectives(*all);
    add_batched_axes(*all);
    add_batched_attention(*all);
    add_batched_packed_sequence(*all);
    add_batched_random(*all);
    return all;
  }();
  return *table;
}

const BatchingRule* BatchingTable::find(const c10::OperatorName& name) {
  const auto& rules = instance().rules_;
  const auto found = rules.find(c10::toString(name));
  return found == rules.end() ? nullptr : &found->second;
}

std::vector<std::string> BatchingTable::names() {
  std::vector<std::string> names;
  for (const auto& [name, rule] : instance().rules_) {
    names.push_back(name);
  }
  return names;
}

} // namespace torchlayers
