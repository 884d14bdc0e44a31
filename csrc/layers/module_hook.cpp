#include "layers/module_hook.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>

#include "core/hooks.h"
#include "reverse/nodes.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using torch::autograd::Edge;
using torch::autograd::variable_list;

// torch.utils.hooks asks for a node of this name.
constexpr const char* kName = "BackwardHookFunctionBackward";

class ModuleHookNode final : public torch::autograd::Node {
 public:
  explicit ModuleHookNode(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      sizes_.push_back(tensor.sym_sizes().vec());
      options_.push_back(tensor.options());
    }
  }

  // As autograd.Functions do, hooks after it see zeros where nothing was pulled back.
  variable_list apply(variable_list&& cotangents) override {
    for (size_t i = 0; i < cotangents.size(); ++i) {
      if (!cotangents[i].defined()) {
        cotangents[i] = at::zeros_symint(sizes_[i], options_[i]);
      }
    }
    return std::move(cotangents);
  }

  std::string name() const override {
    return kName;
  }

 private:
  std::vector<std::vector<c10::SymInt>> sizes_;
  std::vector<at::TensorOptions> options_;
};

int64_t level_of(const at::Tensor& tensor) {
  const auto* wrapper = wrapper_of(tensor);
  return wrapper != nullptr ? wrapper->level().value_or(0) : 0;
}

// The tensor of that level in the wrappers of those above.
at::Tensor lowered(at::Tensor tensor, int64_t level) {
  while (level_of(tensor) > level) {
    tensor = wrapper_of(tensor)->value();
  }
  return tensor;
}

} // namespace

std::vector<at::Tensor> behind_one_node(const std::vector<at::Tensor>& tensors) {
  static std::once_flag named;
  std::call_once(named, [] { hooks.name_type_of_nodes(typeid(ModuleHookNode), kName); });
  int64_t level = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.requires_grad()) {
      level = std::max(level, level_of(tensor));
    }
  }
  const auto is_recorded = [&](const at::Tensor& tensor) {
    return tensor.requires_grad() && level_of(tensor) == level;
  };
  const auto node = make_node<ModuleHookNode>(tensors);
  torch::autograd::edge_list edges;
  for (const at::Tensor& tensor : tensors) {
    edges.push_back(is_recorded(tensor) ? torch::autograd::impl::gradient_edge(tensor) : Edge());
  }
  node->set_next_edges(std::move(edges));
  std::vector<at::Tensor> results;
  for (const at::Tensor& tensor : tensors) {
    if (!is_recorded(tensor)) {
      node->add_input_metadata(torch::autograd::Node::undefined_input()); // it keeps its place
      results.push_back(tensor);
      continue;
    }
    at::Tensor view = lowered(tensor.view_as(tensor), level);
    torch::autograd::set_history(view, node);
    if (auto* meta = torch::autograd::impl::get_view_autograd_meta(view)) {
      // A write to it would go by the node: torch refuses it where this is said.
      meta->set_creation_meta(torch::autograd::CreationMeta::IN_CUSTOM_FUNCTION);
    }
    results.push_back(std::move(view));
  }
  return results;
}

} // namespace torchlayers
