#include "graph/rules/rules.h"

#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>
#include <bitset>
#include <unordered_map>

#include "graph/errors.h"
#include "graph/gradients/lines.h"
#include "graph/insert.h"
#include "graph/script_source.h"

namespace torchlayers::graph {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;
namespace aten = c10::aten;
namespace prim = c10::prim;

namespace {

const std::unordered_map<std::string, GraphRule>& all_rules() {
  static const auto* rules = [] {
    auto* table = new std::unordered_map<std::string, GraphRule>();
    for (const auto& family : {composite_rules(), reduction_rules()}) {
      for (const auto& rule : family) {
        TORCH_INTERNAL_ASSERT(table->emplace(rule.op, rule).second, "two rules for ", rule.op);
      }
    }
    return table;
  }();
  return *rules;
}

// The number after a stem: 2 in "grad2", 0 in "grad"; npos if the rest is not a number.
size_t number_after(const std::string& name, const std::string& stem) {
  if (name.rfind(stem, 0) != 0) {
    return std::string::npos;
  }
  const auto digits = name.substr(stem.size());
  if (digits.empty()) {
    return 0;
  }
  return digits.find_first_not_of("0123456789") == std::string::npos ? std::stoul(digits)
                                                                     : std::string::npos;
}

// One use of a rule: resolves names to values. NOTE [The names in a rule].
class Names {
 public:
  Names(Node& node, at::ArrayRef<Value*> cotangents, const std::function<bool(Value*)>& is_needed)
      : node_(node), cotangents_(cotangents), is_needed_(is_needed) {
    for (size_t i = 0; i < node.inputs().size(); ++i) {
      const auto& argument = node.schema().arguments()[i];
      known_[argument.name()] = {node.input(i), argument.type()->annotation_str()};
      const Node* list = node.input(i)->node();
      for (size_t j = 0; list->kind() == prim::ListConstruct && j < list->inputs().size(); ++j) {
        define(argument.name() + "#" + std::to_string(j), list->input(j));
      }
    }
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      define(name_of_result(i), node.output(i));
    }
  }

  void define(const std::string& name, Value* value) {
    known_[name] = {value, value->type()->annotation_str()};
  }

  // The value, created in the forward graph if necessary; nullptr for other names (torch, True, and
  // the helpers).
  Value* find(const std::string& name, std::string& type) {
    const auto grad = number_after(name, "grad");
    if (grad != std::string::npos) {
      type = "Tensor";
      return cotangents_.at(grad);
    }
    const auto known = known_.find(name);
    if (known == known_.end()) {
      Value* made = make(name);
      if (made == nullptr) {
        return nullptr;
      }
      define(name, made);
      return find(name, type);
    }
    type = known->second.second;
    return known->second.first;
  }

 private:
  // A property of a value, computed in the forward graph for the derivative.
  Value* make(const std::string& name) {
    const auto underscore = name.rfind('_');
    if (underscore == std::string::npos) {
      return nullptr;
    }
    const auto known = known_.find(name.substr(0, underscore));
    if (known == known_.end()) {
      return nullptr;
    }
    Value* value = known->second.first;
    Graph& graph = *node_.owningGraph();
    const auto suffix = name.substr(underscore + 1);
    if (suffix == "needed") {
      return graph.insertConstant(is_needed_(value));
    }
    const WithInsertPoint forward(node_.next());
    if (suffix == "size") {
      return graph.insert(aten::size, {value});
    }
    if (suffix == "dtype") {
      return graph.insert(prim::dtype, {value});
    }
    if (suffix == "device") {
      return graph.insert(prim::device, {value});
    }
    if (suffix == "reduced") {
      return graph.insert(
          aten::_size_if_not_equal,
          {graph.insert(aten::size, {value}),
           graph.insert(aten::size, {known_.at("result").first})});
    }
    return nullptr;
  }

  Node& node_;
  at::ArrayRef<Value*> cotangents_;
  const std::function<bool(Value*)>& is_needed_;
  std::unordered_map<std::string, std::pair<Value*, std::string>> known_;
};

std::vector<Value*> insert_source(Node& node, Names& names, const std::string& source) {
  std::vector<Parameter> parameters;
  std::vector<Value*> arguments;
  for (const auto& name : names_in(source)) {
    std::string type;
    if (Value* value = names.find(name, type)) {
      parameters.push_back({name, type});
      arguments.push_back(value);
    }
  }
  const auto body = compiled(parameters, "    return " + source + "\n");
  return insert_formula(*node.owningGraph(), *body, arguments, node);
}

// The outputs of the rule's forward operator, which replaces the node.
std::vector<Value*> replaced(const GraphRule& rule, Node& node, Names& names) {
  const auto equals = rule.forward.find(" = ");
  const WithInsertPoint after(node.next());
  auto values = insert_source(node, names, rule.forward.substr(equals + 3));
  const auto defined = names_in(rule.forward.substr(0, equals));
  for (size_t i = 0; i < defined.size(); ++i) {
    names.define(defined[i], values.at(i));
  }
  values.resize(node.outputs().size());
  return values;
}

// The gradients of a node's inputs by the lines of the operator that replaces it, which has the
// same inputs.
std::vector<Value*> gradient_of_other(
    Node& other,
    const Node& node,
    at::ArrayRef<Value*> cotangents,
    const std::function<bool(Value*)>& is_needed) {
  const auto gradient = insert_lines(other, cotangents, is_needed);
  if (!gradient) {
    refuse(node, "its gradient depends on an argument that is not known", "Make it a constant.");
  }
  std::vector<Value*> inputs(node.inputs().size(), nullptr);
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (size_t j = 0; j < other.inputs().size(); ++j) {
      inputs[i] = other.input(j) == node.input(i) ? gradient->inputs[j] : inputs[i];
    }
  }
  return inputs;
}

} // namespace

std::string name_of_result(size_t place) {
  return "result" + (place == 0 ? "" : std::to_string(place));
}

std::string full_name(const c10::FunctionSchema& schema) {
  return schema.overload_name().empty() ? schema.name()
                                        : schema.name() + "." + schema.overload_name();
}

std::vector<std::string> rule_names() {
  std::vector<std::string> names;
  for (const auto& [name, rule] : all_rules()) {
    names.push_back(name);
  }
  return names;
}

const GraphRule* rule_for(const Node& node) {
  const auto* schema = node.maybeSchema();
  if (schema == nullptr) {
    return nullptr;
  }
  const auto found = all_rules().find(full_name(*schema));
  return found == all_rules().end() ? nullptr : &found->second;
}

NodeGradient insert_rule(
    const GraphRule& rule,
    Node& node,
    at::ArrayRef<Value*> cotangents,
    const std::function<bool(Value*)>& is_needed) {
  Names names(node, cotangents, is_needed);
  NodeGradient gradient;
  gradient.inputs.resize(node.inputs().size(), nullptr);
  gradient.outputs = rule.forward.empty() ? node.outputs().vec() : replaced(rule, node, names);
  if (rule.derivatives.empty()) {
    gradient.inputs =
        gradient_of_other(*gradient.outputs.at(0)->node(), node, cotangents, is_needed);
  }
  for (const auto& derivative : rule.derivatives) {
    std::vector<size_t> places;
    bool needed = false;
    for (const auto& input : names_in(derivative.inputs)) {
      const auto place = node.schema().argumentIndexWithName(input);
      TORCH_INTERNAL_ASSERT(place, rule.op, " has no argument ", input);
      places.push_back(*place);
      needed |= is_needed(node.input(*place));
    }
    if (needed) {
      const auto values = insert_source(node, names, derivative.expression);
      for (size_t i = 0; i < places.size(); ++i) {
        gradient.inputs[places[i]] = values.at(i);
      }
    }
  }
  return gradient;
}

std::optional<NodeGradient> insert_lines(
    Node& node, at::ArrayRef<Value*> cotangents, const std::function<bool(Value*)>& is_needed) {
  std::bitset<64> needed;
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    needed[i] = is_needed(node.input(i));
  }
  const LineFormula* formula = line_formula(node, needed);
  if (formula == nullptr) {
    return std::nullopt;
  }
  Names names(node, cotangents, is_needed);
  std::vector<Value*> arguments;
  for (const auto& name : formula->names) {
    std::string type;
    arguments.push_back(names.find(name, type));
    TORCH_INTERNAL_ASSERT(arguments.back() != nullptr, "a line reads ", name);
  }
  const auto values = insert_formula(*node.owningGraph(), *formula->graph, arguments, node);
  NodeGradient gradient;
  gradient.inputs.resize(node.inputs().size(), nullptr);
  gradient.outputs = node.outputs().vec();
  for (size_t i = 0; i < values.size(); ++i) {
    gradient.inputs[formula->arguments[i]] = values[i];
  }
  return gradient;
}

} // namespace torchlayers::graph
