#include "graph/reverse/lift.h"

#include <unordered_map>

#include "graph/reverse/captures.h"

namespace torchlayers::graph {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;
namespace prim = c10::prim;

namespace {

using Positions = std::unordered_map<const Value*, size_t>;

// An output that is returned twice counts at its first position.
Positions positions(at::ArrayRef<Value*> values) {
  Positions found;
  for (size_t i = 0; i < values.size(); ++i) {
    found.emplace(values[i], i);
  }
  return found;
}

// Captured inputs are inputs already, and captured outputs may be outputs already. Any other
// capture is a temporary, and becomes an additional output.
void record_captures(ScriptGradient& result, const Block& reverse) {
  Graph& f = *result.f;
  const auto outputs = positions(f.outputs());
  const auto inputs = positions(f.inputs());
  for (Value* value : captures_of(*f.block(), reverse)) {
    const auto output = outputs.find(value);
    const auto input = inputs.find(value);
    if (input != inputs.end()) {
      result.df_input_captured_inputs.push_back(input->second);
    } else if (output != outputs.end()) {
      result.df_input_captured_outputs.push_back(output->second);
    } else {
      result.df_input_captured_outputs.push_back(f.registerOutput(value));
    }
  }
}

// Callers of f may use a temporary too, so df takes a cotangent for it.
void add_vjp_of_temporary(Reverse& reverse, Value* temporary) {
  Value* known = reverse.gradients.find(temporary);
  Graph& graph = *temporary->owningGraph();
  Value* given = reverse.block->addInput()->setType(temporary->type());
  name_gradient(given, temporary);
  Node* sum = graph.create(prim::AutogradAdd, {given, given});
  if (known->node()->kind() == prim::Param) {
    reverse.block->prependNode(sum);
  } else {
    sum->insertAfter(known->node());
  }
  known->replaceAllUsesWith(sum->output());
  sum->replaceInput(1, known); // only now, because it must not replace itself
}

} // namespace

void lift_reverse(ScriptGradient& result, Reverse& reverse) {
  Graph& f = *result.f;
  result.f_real_outputs = f.outputs().size();
  record_captures(result, *reverse.block);
  for (size_t i = result.f_real_outputs; i < f.outputs().size(); ++i) {
    if (reverse.gradients.find(f.outputs()[i]) != nullptr) {
      add_vjp_of_temporary(reverse, f.outputs()[i]);
      result.df_input_vjps.push_back(i);
    }
  }

  std::unordered_map<Value*, size_t> captured;
  const auto add_capture = [&](Value* value) {
    captured[value] = reverse.block->inputs().size();
    reverse.block->addInput()->copyMetadata(value);
  };
  for (const size_t i : result.df_input_captured_inputs) {
    add_capture(f.inputs()[i]);
  }
  for (const size_t i : result.df_input_captured_outputs) {
    add_capture(f.outputs()[i]);
  }
  result.df = std::make_shared<Graph>();
  result.df->block()->cloneFrom(
      reverse.block, [&](Value* value) { return result.df->inputs()[captured.at(value)]; });
  // The copy omits the reverse block. Its nodes can't be destroyed one by one, because each would
  // be searched among all the uses of its inputs, and a weight has thousands.
  result.f = f.copy();
  reverse = {};
}

void pack_results(Graph& graph) {
  Node* results = graph.return_node();
  const WithInsertPoint last(results);
  Value* tuple = graph.insertNode(graph.createTuple(results->inputs()))->output();
  results->removeAllInputs();
  results->addInput(tuple);
}

} // namespace torchlayers::graph
