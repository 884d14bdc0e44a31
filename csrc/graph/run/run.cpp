#include "graph/run/run.h"

#include <torch/csrc/jit/passes/inliner.h>

#include "core/torch_versions.h"
#include "graph/run/script_calls.h"

namespace torchlayers::graph {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;
namespace aten = c10::aten;
namespace prim = c10::prim;

namespace {

// The interpreter would pass profiled values to the executor that inserted the nodes.
void remove_profiling(Block& block) {
  for (auto it = block.nodes().begin(); it != block.nodes().end(); ++it) {
    for (Block* inner : it->blocks()) {
      remove_profiling(*inner);
    }
    if (it->kind() == prim::profile && it->outputs().size() == 1) {
      it->output()->replaceAllUsesWith(it->input());
      it.destroyCurrent();
    }
  }
}

// prim::GradOf means that zeros give zeros; the interpreter needs an explicit branch. torch's own
// pass for this does not look inside the branches of another one.
void lower_linear(Node& node) {
  Graph& graph = *node.owningGraph();
  const WithInsertPoint here(&node);
  Node* any = graph.insertNode(graph.create(prim::AutogradAnyNonZero, node.inputs()));
  any->output()->setType(c10::BoolType::get());
  Node* choice = graph.insertNode(graph.create(prim::If, {any->output()}, node.outputs().size()));
  choice->addBlock()->cloneFrom(node.blocks()[0], [](Value* value) { return value; });
  choice->addBlock();
  const WithInsertPoint otherwise(choice->blocks()[1]);
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    choice->output(i)->setType(node.output(i)->type());
    node.output(i)->replaceAllUsesWith(choice->output(i));
    choice->blocks()[1]->registerOutput(graph.insertNode(graph.createAutogradZero())->output());
  }
}

void count_by_size(Block& block) {
  for (auto it = block.nodes().begin(); it != block.nodes().end(); ++it) {
    for (Block* inner : it->blocks()) {
      count_by_size(*inner);
    }
    if (it->kind() == kNumel) {
      Graph& graph = *block.owningGraph();
      const WithInsertPoint here(*it);
      Value* size = graph.insert(aten::size, {it->input()});
      Node* count = graph.insertNode(
          graph.create(c10::Symbol::fromQualString("torchlayers::elements_of_size"), {size}));
      it->output()->replaceAllUsesWith(count->output()->setType(c10::IntType::get()));
      it.destroyCurrent();
    }
  }
}

void lower_linear(Block& block) {
  for (auto it = block.nodes().begin(); it != block.nodes().end(); ++it) {
    for (Block* inner : it->blocks()) {
      lower_linear(*inner);
    }
    if (it->kind() == prim::GradOf) {
      lower_linear(**it);
      it.destroyCurrent();
    }
  }
}

} // namespace

Program::Program(const Graph& graph) {
  const auto copy = std::const_pointer_cast<Graph>(graph.shared_from_this())->copy();
  torch::jit::Inline(*copy); // it does not inline calls in a forked part
  lower_linear(*copy->block());
  remove_profiling(*copy->block());
  count_by_size(*copy->block());
  replace_executor_calls(*copy->block());
  code_ = torch::jit::Code(copy, "differentiated");
}

std::vector<c10::IValue> Program::run(std::vector<c10::IValue> inputs) const {
  torch::jit::InterpreterState(code_).run(inputs);
  return inputs;
}

} // namespace torchlayers::graph
