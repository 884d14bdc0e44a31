#include "graph/prepare/rewrites.h"

#include <string>
#include <unordered_map>

#include "graph/insert.h"
#include "graph/rules/rules.h"
#include "graph/script_source.h"

namespace torchlayers::graph {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;
namespace prim = c10::prim;

namespace {

// TorchScript in terms of the operator's arguments, by their names in the schema.
const std::unordered_map<std::string, std::string>& compositions() {
  static const std::unordered_map<std::string, std::string> table{
      {"aten::max_pool1d",
       "torch.max_pool2d(self.unsqueeze(-2), [1, kernel_size[0]], "
       "[1, stride[0] if len(stride) > 0 else kernel_size[0]], [0, padding[0]], "
       "[1, dilation[0]], ceil_mode).squeeze(-2)"},
      {"aten::avg_pool1d",
       "torch.avg_pool2d(self.unsqueeze(-2), [1, kernel_size[0]], "
       "[1, stride[0] if len(stride) > 0 else kernel_size[0]], [0, padding[0]], ceil_mode, "
       "count_include_pad).squeeze(-2)"},
      {"aten::binary_cross_entropy_with_logits",
       "reduced(weighted((1 - target) * self - "
       "positive_weight(target, pos_weight) * torch.log_sigmoid(self), weight), reduction)"},
      {"aten::kl_div",
       "reduced(torch.exp(target) * (target - self) if log_target else "
       "torch.xlogy(target, target) - target * self, reduction)"},
      {"aten::cosine_similarity", "cosine_similarity(x1, x2, dim, eps)"},
      {"aten::pairwise_distance", "distance(x1, x2, p, eps, keepdim)"},
      {"aten::triplet_margin_loss",
       "reduced(triplet_margin(anchor, positive, negative, margin, p, eps, swap), reduction)"},
      {"aten::margin_ranking_loss",
       "reduced((margin - target * (input1 - input2)).clamp_min(0), reduction)"},
      {"aten::soft_margin_loss", "reduced(torch.log1p(torch.exp(-target * self)), reduction)"},
      {"aten::poisson_nll_loss",
       "reduced(poisson_nll(input, target, log_input, full, eps), reduction)"},
      {"aten::prelu", "prelu(self, weight)"},
      {"aten::pad", "padded(self, pad, mode, value)"},
      {"aten::nll_loss_nd", "nll(self, target, weight, reduction, ignore_index)"},
      {"aten::cross_entropy_loss",
       "cross_entropy(self, target, weight, reduction, ignore_index, label_smoothing)"},
      {"aten::group_norm", "group_norm(input, num_groups, weight, bias, eps)"},
      {"aten::instance_norm",
       "instance_norm(input, weight, bias, running_mean, running_var, use_input_stats, momentum, "
       "eps, cudnn_enabled)"},
      {"aten::rms_norm", "rms_norm(input, normalized_shape, weight, eps)"},
      {"aten::tile", "tiled(self, dims)"},
      {"aten::hstack", "stacked_horizontally(tensors)"},
      {"aten::vstack", "torch.cat([torch.atleast_2d(tensor) for tensor in tensors], 0)"},
      {"aten::dstack", "torch.cat([torch.atleast_3d(tensor) for tensor in tensors], 2)"},
      {"aten::var_mean", "torch.var(self, unbiased), torch.mean(self)"},
      {"aten::var_mean.dim",
       "torch.var(self, dim, unbiased, keepdim), torch.mean(self, dim, keepdim)"},
      {"aten::std_mean", "torch.std(self, unbiased), torch.mean(self)"},
      {"aten::std_mean.dim",
       "torch.std(self, dim, unbiased, keepdim), torch.mean(self, dim, keepdim)"},
      {"aten::scaled_dot_product_attention",
       "attention(query, key, value, attn_mask, dropout_p, is_causal, scale)"},
  };
  return table;
}

void rewrite_node(Node& node, const std::string& composition) {
  Graph& graph = *node.owningGraph();
  const auto used = names_in(composition);
  std::vector<Parameter> parameters;
  std::vector<Value*> arguments;
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    const auto& argument = node.schema().arguments()[i];
    if (std::find(used.begin(), used.end(), argument.name()) != used.end()) {
      parameters.push_back({argument.name(), argument.type()->annotation_str()});
      arguments.push_back(node.input(i));
    }
  }
  const auto body = compiled(parameters, "    return " + composition + "\n");
  const WithInsertPoint here(&node);
  const auto values = insert_formula(graph, *body, arguments, node);
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    node.output(i)->replaceAllUsesWith(values.at(i));
  }
  node.destroy();
}

void rewrite_block(Block& block) {
  for (auto it = block.nodes().begin(); it != block.nodes().end();) {
    Node* node = *it++;
    for (Block* inner : node->blocks()) {
      rewrite_block(*inner);
    }
    if (const auto* schema = node->maybeSchema()) {
      const auto found = compositions().find(full_name(*schema));
      if (found != compositions().end()) {
        rewrite_node(*node, found->second);
      }
    }
  }
}

} // namespace

std::vector<std::string> composition_names() {
  std::vector<std::string> names;
  for (const auto& [name, composition] : compositions()) {
    names.push_back(name);
  }
  return names;
}

void rewrite(Graph& graph) {
  rewrite_block(*graph.block());
}

} // namespace torchlayers::graph
