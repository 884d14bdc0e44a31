// The families of batching rules, a file each.
#pragma once

#include <initializer_list>
#include <string>
#include <unordered_map>
#include <vector>

#include "batched_call.h"

namespace torchlayers {

// By the operators' names: "mul.Tensor" is aten::mul.Tensor.
class BatchTable {
 public:
  void add(std::initializer_list<const char*> names, BatchRule rule);

  // Null where there is none.
  static const BatchRule* find(const c10::OperatorName& name);
  static std::vector<std::string> names();

 private:
  static const BatchTable& instance();

  std::unordered_map<std::string, BatchRule> rules_;
};

void add_batched_pointwise(BatchTable& rules);
void add_batched_shapes(BatchTable& rules);
void add_batched_along(BatchTable& rules);
void add_batched_reductions(BatchTable& rules);
void add_batched_products(BatchTable& rules);
void add_batched_images(BatchTable& rules);
void add_batched_losses(BatchTable& rules);
void add_batched_norms(BatchTable& rules);
void add_batched_indexing(BatchTable& rules);
void add_batched_lists(BatchTable& rules);
void add_batched_masked(BatchTable& rules);

} // namespace torchlayers
