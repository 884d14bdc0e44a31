#include <algorithm>

#include "graph/reverse/reverse.h"

namespace torchlayers::graph {

using torch::jit::Graph;
using torch::jit::Value;
namespace prim = c10::prim;

Value* Gradients::find(const Value* value) const {
  const auto found = gradients_.find(value);
  return found == gradients_.end() ? nullptr : found->second;
}

void Gradients::add(Value* value, Value* gradient) {
  auto [entry, is_new] = gradients_.emplace(value, gradient);
  if (is_new) {
    order_.push_back(value);
    return;
  }
  Graph& graph = *value->owningGraph();
  entry->second =
      graph.insertNode(graph.create(prim::AutogradAdd, {entry->second, gradient}))->output();
}

void Gradients::rename(Value* from, Value* to) {
  const auto entry = gradients_.find(from);
  if (entry == gradients_.end()) {
    return;
  }
  // The sweep has reached this value, so its gradient was most likely added recently.
  const auto place = std::find(order_.rbegin(), order_.rend(), from);
  if (gradients_.emplace(to, entry->second).second) {
    *place = to;
  } else { // a formula that returns its input, which already has a gradient
    order_.erase(std::next(place).base());
  }
  gradients_.erase(from);
}

void Gradients::keep_only(
    const std::unordered_set<const Value*>& forward,
    const std::unordered_set<const Value*>& reverse) {
  const auto is_gone = [&](Value* value) {
    const auto entry = gradients_.find(value);
    if (forward.count(value) > 0 && reverse.count(entry->second) > 0) {
      return false;
    }
    gradients_.erase(entry);
    return true;
  };
  order_.erase(std::remove_if(order_.begin(), order_.end(), is_gone), order_.end());
}

void Gradients::add_part(Value* list, Part part) {
  parts_[list].push_back(part);
}

const std::vector<Part>& Gradients::parts(const Value* list) const {
  static const std::vector<Part> none;
  const auto found = parts_.find(list);
  return found == parts_.end() ? none : found->second;
}

std::vector<const Value*> Gradients::lists() const {
  std::vector<const Value*> found;
  for (const auto& [list, parts] : parts_) {
    found.push_back(list);
  }
  return found;
}

Value* zero(Graph& graph) {
  return graph.insertNode(graph.createAutogradZero())->output();
}

Value* name_gradient(Value* gradient, const Value* of) {
  return gradient->setDebugName("grad_" + of->debugName());
}

} // namespace torchlayers::graph
