// Operators under vmap that write to tensors made inside the function, or read such tensors.
#pragma once

#include <utility>
#include <vector>

#include "layers/vmap/vmap.h"
#include "values/local_storages.h"

namespace torchlayers {

// While it lives, batched tensors replace arguments that were made inside and have been written a
// batched value, or are about to be by this operator. NOTE [Made inside].
class Writes {
 public:
  Writes(const Operator& op, Args& args, VmapLayer& layer);

  // Puts the original tensors back in place of their stand-ins; for an in-place operator, its
  // target.
  void give_back(const Operator& op, Args& results) const;

 private:
  void stand_in(const Operator& op, Args& args);
  void make_room(const Operator& op, Args& args);
  void keep_tangents_apart(const Operator& op, Args& args) const;
  bool any_batched(const Operator& op, const Args& args) const;
  bool needs_room(const Operator& op, const Args& args) const;

  VmapLayer& layer_;
  LocalStorages& local_storages_;
  std::vector<std::pair<at::Tensor, at::Tensor>> stand_ins_; // and the tensors that they replace
  at::Tensor target_;                                        // of an in-place operator
};

// Runs sin(x, out=y) as y.copy_(sin(x)), and returns true, if any of its tensors is batched, for
// which torch has no rule.
bool write_out(const Operator& op, Args& args, VmapLayer& layer);

// Notes which of an operator's results the function has created, and their views.
class NotedResults {
 public:
  NotedResults(const Operator& op, const Args& args, VmapLayer& layer);
  void note(const Args& results) const;

 private:
  const Operator& op_;
  VmapLayer& layer_;
  LocalStorages::Memories given_; // of the arguments
  at::Tensor viewed_;
};

} // namespace torchlayers
