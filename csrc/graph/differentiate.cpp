// The steps of differentiation, in order. Each has its own file.
#include <torch/csrc/jit/passes/lower_tuples.h>
#include <torch/csrc/jit/passes/update_differentiable_graph_requires_grad.h>

#include <sstream>

#include "graph/gradient.h"
#include "graph/reverse/captures.h"
#include "graph/reverse/constants.h"
#include "graph/reverse/dead_code.h"
#include "graph/reverse/lift.h"
#include "graph/reverse/reverse.h"
#include "graph/reverse/sizes.h"
#include "graph/tracked.h"

namespace torchlayers::graph {

using torch::jit::Graph;

namespace {

// Prints the graph after each step, if requested.
class Diary {
 public:
  Diary(ScriptGradient& result, bool keep) : result_(result), keep_(keep) {}

  template <class... Printable>
  void write(const char* step, const Printable&... printed) {
    if (keep_) {
      std::ostringstream text;
      (text << ... << printed);
      result_.steps.emplace_back(step, text.str());
    }
  }

 private:
  ScriptGradient& result_;
  bool keep_;
};

} // namespace

ScriptGradient differentiate(const Graph& prepared, bool keep_steps) {
  ScriptGradient result;
  Diary diary(result, keep_steps);
  result.f = std::const_pointer_cast<Graph>(prepared.shared_from_this())->copy();
  diary.write("prepared", *result.f);

  const Tracked tracked(*result.f);
  auto reverse = add_reverse(*result.f, tracked, result);
  torch::jit::LowerSimpleTuples(result.f->block());
  diary.write("reversed", *result.f, *reverse.node);

  lift_constants(*result.f->block(), *reverse.block);
  diary.write("constants lifted", *result.f, *reverse.node);

  fold_sizes(*reverse.block);
  merge_sizes(*result.f->block());
  remove_dead(*reverse.block);
  place_sizes(*result.f->block(), *reverse.block);
  diary.write("sizes placed", *result.f, *reverse.node);

  remove_dead(*result.f, reverse);
  diary.write("dead code removed", *result.f, *reverse.node);

  check_captures_keep(*result.f, *reverse.block);
  lift_reverse(result, reverse);
  pack_results(*result.df);
  // f runs on tensors whose autograd graph is ignored, so profiled types must not require grad.
  torch::jit::UpdateDifferentiableGraphRequiresGrad(result.f, false);
  diary.write("lifted", *result.f, *result.df);
  return result;
}

} // namespace torchlayers::graph
