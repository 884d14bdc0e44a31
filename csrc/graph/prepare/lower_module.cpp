#include "graph/prepare/lower_module.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <unordered_map>

#include "graph/errors.h"

namespace torchlayers::graph {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;
namespace prim = c10::prim;

namespace {

// Follows attributes, starting from %self.
class Lowering {
 public:
  Lowering(Graph& graph, const c10::IValue& self) : graph_(graph) {
    objects_[graph.inputs()[0]] = {self, "self"};
  }

  std::vector<c10::IValue> run() {
    visit(*graph_.block());
    for (auto it = done_.rbegin(); it != done_.rend(); ++it) {
      (*it)->destroy();
    }
    check_unused(*graph_.inputs()[0]);
    graph_.eraseInput(0);
    return tensors_;
  }

 private:
  struct Named {
    c10::IValue value;
    std::string name;
  };

  void visit(Block& block) {
    for (Node* node : block.nodes()) {
      for (Block* inner : node->blocks()) {
        visit(*inner);
      }
      if (node->kind() == prim::GetAttr) {
        const auto object = objects_.find(node->input());
        if (object != objects_.end()) {
          read(*node, object->second);
        }
      }
    }
  }

  void read(Node& node, const Named& object) {
    const auto& attribute = node.s(c10::attr::name);
    const Named found{object.value.toObjectRef().getAttr(attribute), object.name + "_" + attribute};
    if (found.value.isModule()) {
      objects_[node.output()] = found;
    } else if (found.value.isTensor()) {
      node.output()->replaceAllUsesWith(input_for(found, node.output()->type()));
    } else {
      // An attribute that is not a tensor, such as `training`, becomes a constant with its current
      // value.
      const WithInsertPoint here(&node);
      const auto constant = torch::jit::tryInsertConstant(graph_, found.value);
      if (!constant) {
        refuse(
            node,
            "it reads the attribute " + attribute +
                " of the module, which is not a tensor and can't become a constant",
            "Pass it as an argument.");
      }
      node.output()->replaceAllUsesWith(*constant);
    }
    done_.push_back(&node);
  }

  // Frozen parameters and buffers do not require grad.
  Value* input_for(const Named& tensor, const c10::TypePtr& type) {
    const auto* identity = tensor.value.toTensor().unsafeGetTensorImpl();
    const auto known = inputs_.find(identity);
    if (known != inputs_.end()) {
      return known->second;
    }
    Value* input = graph_.addInput(tensor.name);
    const auto tensor_type = type->cast<c10::TensorType>();
    input->setType(
        tensor_type ? tensor_type->withRequiresGrad(tensor.value.toTensor().requires_grad())
                    : type);
    tensors_.push_back(tensor.value);
    return inputs_[identity] = input;
  }

  static void check_unused(const Value& self) {
    for (const auto& use : self.uses()) {
      refuse(
          *use.user,
          "it uses the module for more than reading its attributes",
          "Pass the values that it changes as arguments, and return them.");
    }
  }

  Graph& graph_;
  std::unordered_map<const Value*, Named> objects_;
  std::unordered_map<const c10::TensorImpl*, Value*> inputs_;
  std::vector<c10::IValue> tensors_;
  std::vector<Node*> done_;
};

} // namespace

std::vector<c10::IValue> lower_module(Graph& graph, const c10::IValue& self) {
  return Lowering(graph, self).run();
}

} // namespace torchlayers::graph
