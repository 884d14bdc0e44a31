// The families of batching rules, one per file.
#pragma once

#include <initializer_list>
#include <string>
#include <unordered_map>
#include <vector>

#include "rules/batching/batched_call.h"

namespace torchlayers {

// Maps the names of operators to rules: "mul.Tensor" is aten::mul.Tensor; operators of other
// namespaces use their qualified names.
class BatchingTable {
 public:
  void add(std::initializer_list<const char*> names, BatchingRule rule);

  // Null where there is none.
  static const BatchingRule* find(const c10::OperatorName& name);
  static std::vector<std::string> names();

 private:
  static const BatchingTable& instance();

  std::unordered_map<std::string, BatchingRule> rules_;
};

void add_batched_pointwise(BatchingTable& rules);
void add_batched_shapes(BatchingTable& rules);
void add_batched_strided(BatchingTable& rules);
void add_batched_dim_ops(BatchingTable& rules);
void add_batched_reductions(BatchingTable& rules);
void add_batched_products(BatchingTable& rules);
void add_batched_linear_solve(BatchingTable& rules);
void add_batched_distances(BatchingTable& rules);
void add_batched_conv_pool(BatchingTable& rules);
void add_batched_losses(BatchingTable& rules);
void add_batched_norms(BatchingTable& rules);
void add_batched_indexing(BatchingTable& rules);
void add_batched_tensor_lists(BatchingTable& rules);
void add_batched_masked(BatchingTable& rules);
void add_batched_collectives(BatchingTable& rules);
void add_batched_axes(BatchingTable& rules);
void add_batched_attention(BatchingTable& rules);
void add_batched_packed_sequence(BatchingTable& rules);
void add_batched_random(BatchingTable& rules);

} // namespace torchlayers
