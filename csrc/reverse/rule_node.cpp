#include "reverse/rule_node.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "core/args.h"
#include "core/below.h"
#include "core/callbacks.h"
#include "core/errors.h"
#include "core/stack.h"
#include "reverse/anomaly.h"
#include "reverse/node_kinds.h"
#include "reverse/node_names.h"
#include "values/without_strides.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using torch::autograd::Edge;
using torch::autograd::variable_list;

bool is_tracked(const at::Tensor& tensor, int64_t level) {
  const auto* wrapper = wrapper_of(tensor);
  return wrapper != nullptr && wrapper->level() == level && tensor.requires_grad();
}

bool is_column_major(const at::Tensor& tensor) {
  if (tensor.dim() != 2) {
    return false;
  }
  const auto strides = tensor.sym_strides();
  return strides[0] == 1 && strides[1] == tensor.sym_size(0);
}

// Replaces tensors that the rule does not read by None.
void drop_unread(Args& values, const std::bitset<64>& read) {
  for (size_t i = 0; i < values.size(); ++i) {
    const bool has_tensors =
        values[i].isTensor() || values[i].isTensorList() || values[i].isOptionalTensorList();
    if (has_tensors && !read[i]) {
      values[i] = c10::IValue();
    }
  }
}

} // namespace

RuleNode::RuleNode(const Operator& op, const VjpRule& rule, const Args& args, const Layer& layer)
    : op_(op),
      rule_(rule),
      level_(layer.level()),
      is_alive_(mirror().back().interpreter().is_alive_ptr()) {
  torch::autograd::edge_list edges;
  edges.reserve(2);
  const auto track = [&](const at::Tensor& tensor, size_t arg, size_t member, bool is_list) {
    const bool tracked = is_tracked(tensor, level_);
    if (!tracked && !is_list) {
      return;
    }
    targets_.emplace_back(
        arg,
        member,
        tensor.sym_sizes(),
        tensor.scalar_type(),
        tensor.device(),
        is_column_major(tensor));
    edges.push_back(tracked ? torch::autograd::impl::gradient_edge(tensor) : Edge());
    if (tracked) {
      reads_.add(rule.reads(arg));
    }
  };
  for (size_t i = 0; i < op.num_args; ++i) {
    const c10::IValue& value = peek(args, i, op.num_args);
    if (!rule.knows(i)) {
      continue;
    }
    if (value.isTensor() && value.toTensor().defined()) {
      track(value.toTensor(), i, 0, /*is_list=*/false);
    } else if (value.isTensorList()) {
      const auto members = value.toListRef();
      for (size_t j = 0; j < members.size(); ++j) {
        track(members[j].toTensor(), i, j, /*is_list=*/true);
      }
    }
  }
  set_next_edges(std::move(edges));
  if (C10_UNLIKELY(is_anomaly_mode())) {
    Inducing::tell(*this);
  }
  visit_tensors(args, op.num_args, [this](const at::Tensor& tensor, size_t i) {
    if (reads_.args[i]) {
      save_version(tensor);
    }
  });
}

RuleNode::~RuleNode() = default;

void RuleNode::pack_args(const Args& args) {
  callbacks.adopt_saved_hooks();
  packed_ = std::make_unique<Packed>();
  versions_.clear(); // the hooks may keep copies
  visit_tensors(args, op_.num_args, [this](const at::Tensor& tensor, size_t i) {
    if (reads_.args[i]) {
      packed_->pack(tensor, /*is_result=*/false);
    }
  });
}

void RuleNode::save_args(const Args& values) {
  args_ = last(values, op_.num_args).vec();
  drop_unread(args_, reads_.args);
  if (packed_ != nullptr) {
    packed_->let_go(args_);
  }
}

void RuleNode::save_version(const at::Tensor& tensor) {
  if (tensor.is_inference()) {
    if (wrapper_of(tensor) == nullptr) {
      return; // captured: it has no version
    }
    raise(
        "Inference tensors cannot be saved for backward, and {} needs one for its gradient. Make "
        "it outside inference mode, or use a clone of it.",
        op_.name());
  }
  versions_.emplace_back(tensor);
}

void RuleNode::save_results(Args results, const Args& wrapped) {
  results_ = std::move(results);
  drop_unread(results_, reads_.results);
  visit_tensors(wrapped, results_.size(), [this](const at::Tensor& result, size_t i) {
    if (reads_.results[i]) {
      packed_ != nullptr ? packed_->pack(result, /*is_result=*/true) : save_version(result);
    }
  });
  if (packed_ != nullptr) {
    packed_->let_go(results_);
  }
}

void RuleNode::check_is_intact() const {
  if (is_released_) {
    raise(
        "trying to go backward through the graph a second time, but what {} had saved was freed "
        "after the first. Pass retain_graph=True to pull back through it again.",
        op_.name());
  }
  for (const SavedVersion& version : versions_) {
    version.check([&] { return "the gradient of " + op_.name(); });
  }
}

void RuleNode::vjp(
    at::ArrayRef<at::Tensor> cotangents,
    c10::function_ref<bool(size_t)> is_wanted,
    variable_list& gradients) {
  check_is_intact();
  gradients.assign(targets_.size(), at::Tensor());
  const auto unpacked = this->unpacked();
  const Args& args = unpacked ? unpacked->first : args_;
  const Args& results = unpacked ? unpacked->second : results_;
  VjpCall call(op_, args, results, targets_, cotangents, is_wanted, gradients);
  rule_.vjp(call);
}

std::optional<std::pair<Args, Args>> RuleNode::unpacked() const {
  if (packed_ == nullptr) {
    return std::nullopt;
  }
  std::pair<Args, Args> saved{args_, results_};
  packed_->unpack(saved.first, saved.second, level_);
  return saved;
}

std::pair<Args, Args> RuleNode::at_level() const {
  const auto& interpreter = mirror()[level_ - 1].interpreter();
  const auto wrapped = [&](const at::Tensor& value) {
    return wrapper_around(value, interpreter, /*is_immutable=*/false);
  };
  const auto unpacked = this->unpacked();
  Args args = unpacked ? unpacked->first : args_;
  change_tensors(args, op_.num_args, [&](const at::Tensor& value, size_t i) {
    at::Tensor tensor = wrapped(value);
    for (size_t k = 0; k < targets_.size(); ++k) {
      const Edge& edge = next_edge(k);
      if (targets_[k].arg != i || args_[i].isList() || !edge.is_valid()) {
        continue;
      }
      if (const at::Tensor* leaf = leaf_of(*edge.function)) {
        return *leaf;
      }
      torch::autograd::impl::set_gradient_edge(tensor, edge);
    }
    return tensor;
  });
  Args results = unpacked ? unpacked->second : results_;
  uint32_t place = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].isTensor()) {
      at::Tensor tensor = wrapped(results[i].toTensor());
      if (rule_.differentiates(i)) {
        torch::autograd::impl::set_gradient_edge(
            tensor, Edge(const_cast<RuleNode*>(this)->getptr(), place));
      }
      results[i] = std::move(tensor);
    }
    place += rule_.differentiates(i) ? 1 : 0;
  }
  return {std::move(args), std::move(results)};
}

// NOTE [Who runs a node of ours]
// - Our reverse pass, on values below (pass.cpp).
// - The engine, in the layer's backward phase: that pass is not differentiated at this level,
//   so it runs below too.
// - The engine, after the layer has ended (vjp): only values are left.
// - The engine for a user who calls torch.autograd.grad inside the function, and may want to
//   differentiate the result again: on tensors of this level, with their histories.
variable_list RuleNode::apply(variable_list&& cotangents) {
  const auto is_wanted = [this](size_t i) { return task_should_compute_output(i); };
  const auto& entries = mirror();
  const auto place = static_cast<size_t>(level_ - 1);
  variable_list gradients(targets_.size());
  change_defined(cotangents, &without_dead_wrappers);
  if (std::ranges::none_of(cotangents, &at::Tensor::defined)) {
    return gradients;
  }
  if (!*is_alive_) {
    vjp(cotangents, is_wanted, gradients);
    return gradients;
  }
  if (place >= entries.size() || entries[place].interpreter().is_alive_ptr() != is_alive_) {
    raise(
        "the backward pass of a graph of grad (level {}) was run on a thread where that transform "
        "is not active.",
        level_);
  }
  Layer* layer = top_layer();
  const bool is_top = layer != nullptr && layer->level() == level_;
  if (!is_top || !(layer->runs_backward() || !at::GradMode::is_enabled())) {
    check_is_intact();
    const auto [args, results] = at_level();
    VjpCall call(op_, args, results, targets_, cotangents, is_wanted, gradients);
    rule_.vjp(call);
    return gradients;
  }
  change_defined(cotangents, [&](const at::Tensor& each) { return unwrap(each, level_); });
  {
    const Below below(*layer, Modes::of_thread());
    vjp(cotangents, is_wanted, gradients);
  }
  change_defined(gradients, [&](const at::Tensor& each) {
    return wrap(each, *layer, /*is_immutable=*/false);
  });
  return gradients;
}

void RuleNode::release_variables() {
  is_released_ = true;
  args_.clear();
  results_.clear();
  versions_.clear();
  packed_.reset();
}

std::string RuleNode::name() const {
  return node_name(op_);
}

} // namespace torchlayers
