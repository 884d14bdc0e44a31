// Under vmap: operators that write to what the function has made, or read what it has written.
#pragma once

#include <utility>
#include <vector>

#include "layers/vmap.h"
#include "values/inside.h"

namespace torchlayers {

// While it lives, batched tensors stand in the arguments for those that were made inside and have
// been written a batched value, or are about to be by this operator. NOTE [Made inside].
class Writes {
 public:
  Writes(const Operator& op, Args& args, VmapLayer& layer);

  // The results, of an operator in place the tensors that it was given.
  void give_back(const Operator& op, Args& results) const;

 private:
  void stand_in(const Operator& op, Args& args);
  void make_room(const Operator& op, Args& args);
  bool any_batched(const Operator& op, const Args& args) const;
  bool needs_room(const Operator& op, const Args& args) const;

  VmapLayer& layer_;
  Inside& inside_;
  std::vector<std::pair<at::Tensor, at::Tensor>> stand_ins_; // and for what
  at::Tensor target_;                                        // of an operator in place
};

// Runs sin(x, out=y) as y.copy_(sin(x)), and tells whether it did so: where something in it is
// batched, for which torch has no rule.
bool write_out(const Operator& op, Args& args, VmapLayer& layer);

// Notes what of an operator's results the function has made, and its views.
class NotedResults {
 public:
  NotedResults(const Operator& op, const Args& args, VmapLayer& layer);
  void note(const Args& results) const;

 private:
  const Operator& op_;
  VmapLayer& layer_;
  Inside::Memories given_; // what the arguments share memory with
  at::Tensor viewed_;
};

} // namespace torchlayers
