#include "graph/gradients/linear.h"

namespace torchlayers::graph {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;
namespace prim = c10::prim;

Linear::Linear(Node& of, const std::vector<Value*>& cotangents) {
  Graph& graph = *of.owningGraph();
  node_ = graph.insertNode(graph.create(prim::GradOf, cotangents, 0));
  node_->s_(c10::attr::name, of.kind().toQualString());
  node_->setSourceRange(of.sourceRange());
  block_ = node_->addBlock();
}

Node* Linear::insert(Node* node) {
  return block_->appendNode(node);
}

void Linear::give(Value* forward, Value* inside, Gradients& gradients) {
  block_->registerOutput(inside);
  Value* outside = node_->addOutput()->setType(inside->type());
  gradients.add(forward, name_gradient(outside, forward));
}

void Linear::give(
    Value* forward, const std::function<Value*()>& build_inside, Gradients& gradients) {
  give(forward, build(build_inside), gradients);
}

} // namespace torchlayers::graph
