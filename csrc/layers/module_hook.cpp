#include "layers/module_hook.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>

#include "core/callbacks.h"
#include "reverse/node_kinds.h"
#include "values/functional.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using torch::autograd::Edge;
using torch::autograd::variable_list;

// torch.utils.hooks looks for a node of this name.
constexpr const char* kName = "BackwardHookFunctionBackward";

class ModuleHookNode final : public torch::autograd::Node {
 public:
  explicit ModuleHookNode(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      sizes_.push_back(tensor.sym_sizes().vec());
      options_.push_back(tensor.options());
    }
  }

  // As with autograd.Functions, later hooks see zeros where there is no cotangent.
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

} // namespace

BehindOneNode behind_one_node(const std::vector<at::Tensor>& tensors) {
  static std::once_flag named;
  std::call_once(named, [] { callbacks.name_type_of_nodes(typeid(ModuleHookNode), kName); });
  std::vector<at::Tensor> values; // at the node's level, undefined where that does not record it
  int64_t level = -1;
  BehindOneNode behind;
  for (const at::Tensor& tensor : tensors) {
    auto [value, hold] = recorded(tensor);
    level = value.defined() ? std::max(level, hold.level) : level;
    values.push_back(std::move(value));
    behind.holds.push_back(std::move(hold));
  }
  if (level < 0) {
    return {tensors, {}, {}};
  }
  torch::autograd::edge_list edges;
  for (size_t i = 0; i < values.size(); ++i) {
    if (behind.holds[i].level < level) {
      values[i].reset();
    }
    edges.push_back(values[i].defined() ? torch::autograd::impl::gradient_edge(values[i]) : Edge());
  }
  const auto node = own_node(new ModuleHookNode(values));
  node->set_next_edges(std::move(edges));
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!values[i].defined()) {
      node->add_input_metadata(torch::autograd::Node::undefined_input()); // keeps its index
      behind.tensors.push_back(tensors[i]);
      continue;
    }
    at::Tensor shown =
        behind.holds[i].stands_for_another ? tensors[i].clone() : tensors[i].view_as(tensors[i]);
    const at::Tensor view = held_at(shown, level).first;
    torch::autograd::set_history(view, node);
    if (auto* meta = torch::autograd::impl::get_view_autograd_meta(view)) {
      // A write to it would bypass the node: with this setting torch rejects it.
      meta->set_creation_meta(torch::autograd::CreationMeta::IN_CUSTOM_FUNCTION);
    }
    behind.recorded = view;
    // A tensor at the node's own level has to be returned at that level.
    const bool is_of_level = tensors[i].requires_grad() && functional_of(tensors[i]) == nullptr;
    behind.tensors.push_back(is_of_level ? view : std::move(shown));
  }
  return behind;
}

} // namespace torchlayers
