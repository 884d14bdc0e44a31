#include "graph/gradients/lines.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/common_subexpression_elimination.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <sstream>
#include <unordered_map>

#include "core/device.h"
#include "graph/gradients/symbolic.h"
#include "graph/rules/rules.h"
#include "rules/table.h"

namespace torchlayers::graph {

using torch::jit::Node;
using torch::jit::Value;
namespace prim = c10::prim;

namespace {

// Operators with the gradient of another one, which reads only arguments that both have.
const std::string& operator_with_lines(const std::string& name) {
  static const std::unordered_map<std::string, std::string> others{
      {"aten::max.other", "aten::maximum"},
      {"aten::min.other", "aten::minimum"},
      {"aten::reshape", "aten::view"},
      {"aten::flatten.using_ints", "aten::view"},
      {"aten::unflatten.int", "aten::view"},
      {"aten::view_as", "aten::view"},
      {"aten::reshape_as", "aten::view"},
      {"aten::atleast_1d", "aten::view"},
      {"aten::atleast_2d", "aten::view"},
      {"aten::atleast_3d", "aten::view"},
      {"aten::expand_as", "aten::expand"},
      {"aten::broadcast_to", "aten::expand"},
      {"aten::alias", "aten::clone"},
      {"aten::positive", "aten::clone"},
      {"aten::where.ScalarOther", "aten::where.self"},
      {"aten::where.ScalarSelf", "aten::where.self"},
      {"aten::index_put.hacked_twin", "aten::index_put"},
  };
  const auto other = others.find(name);
  return other == others.end() ? name : other->second;
}

// Arguments that a rule does not know are indices, or else the first ones of these. The first of
// polar has a line, which is for complex cotangents.
bool lacks_first(const std::string& name) {
  return name == "aten::igamma" || name == "aten::igammac" || name == "aten::special_zeta" ||
         name == "aten::polar";
}

const VjpRule* rule_of(const Node& node) {
  const auto* schema = node.maybeSchema();
  if (schema == nullptr) {
    return nullptr;
  }
  const auto name = torch::jit::parseName(operator_with_lines(full_name(*schema)));
  return Table::find_vjp(name);
}

std::string name_of_member(const std::string& list, size_t place) {
  return list + "#" + std::to_string(place);
}

bool is_list(const Value& value) {
  return value.node()->kind() == prim::ListConstruct;
}

// A text that is the same for arguments that become the same values below.
void describe(const Value& value, std::ostream& text) {
  if (is_list(value)) {
    text << "[";
    for (const Value* member : value.node()->inputs()) {
      describe(*member, text);
    }
    text << "]";
    return;
  }
  const auto constant = torch::jit::toIValue(&value);
  if (constant && !constant->isTensor()) {
    text << constant->tagKind() << " " << *constant << ";";
  } else {
    text << c10::typeKindToString(value.type()->kind()) << ";";
  }
}

c10::IValue symbolic_argument(Formula& formula, const std::string& name, const Value& value);

c10::IValue symbolic_list(Formula& formula, const std::string& name, const Value& value) {
  const auto& element = value.type()->expectRef<c10::ListType>().getElementType();
  c10::impl::GenericList list(element);
  std::vector<c10::SymInt> integers;
  bool are_plain = true; // so that lines may read them as int64_t
  for (const Value* member : value.node()->inputs()) {
    const auto place = name_of_member(name, integers.size() + list.size());
    const c10::IValue symbolic = symbolic_argument(formula, place, *member);
    if (element->kind() == c10::TypeKind::IntType) {
      integers.push_back(symbolic.toSymInt());
      are_plain = are_plain && symbolic.isInt();
    } else {
      list.push_back(symbolic);
    }
  }
  if (element->kind() != c10::TypeKind::IntType) {
    return list;
  }
  return are_plain ? c10::IValue(C10_AS_INTARRAYREF_SLOW(integers)) : c10::IValue(integers);
}

c10::IValue symbolic_argument(Formula& formula, const std::string& name, const Value& value) {
  const auto constant = torch::jit::toIValue(&value);
  if (constant && !constant->isTensor()) {
    return *constant;
  }
  if (is_list(value)) {
    return symbolic_list(formula, name, value);
  }
  switch (value.type()->kind()) {
    case c10::TypeKind::TensorType:
      return formula.tensor(name);
    case c10::TypeKind::OptionalType: // lines may pass it on to an operator that takes None
      TORCH_CHECK(value.type()->isSubtypeOf(*c10::OptionalType::ofTensor()), name, " is not known");
      return formula.tensor(name, c10::OptionalType::ofTensor());
    case c10::TypeKind::IntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::NumberType:
    case c10::TypeKind::BoolType:
      return formula.number(name, value.type());
    default:
      TORCH_CHECK(value.type()->isSubtypeOf(*c10::ListType::ofInts()), name, " is not known");
      return formula.integers(name);
  }
}

// The size to which an argument's gradient is summed where the argument may have been broadcast: a
// name that ends as in NOTE [The names in a rule], or "". The gradients of terms have the result's
// size; the lines of these operators rely on VjpCall::give.
std::string size_to_sum_to(const VjpRule& rule, const c10::FunctionSchema& schema, size_t arg) {
  static const std::unordered_map<std::string, std::vector<size_t>> by_name{
      {"aten::addbmm", {0}},
      {"aten::addmm", {0}},
      {"aten::addmv", {0}},
      {"aten::addr", {0}},
      {"aten::baddbmm", {0}},
      {"aten::broadcast_to", {0}},
      {"aten::expand", {0}},
      {"aten::expand_as", {0}},
      {"aten::index_put", {2}},
      {"aten::index_put.hacked_twin", {2}},
  };
  const std::string& name = schema.arguments()[arg].name();
  const auto entry = by_name.find(full_name(schema));
  if (entry != by_name.end() && std::ranges::count(entry->second, arg) > 0) {
    return name + "_size";
  }
  const auto tensors = std::ranges::count_if(schema.arguments(), [](const auto& argument) {
    return argument.type()->isSubtypeOf(*c10::OptionalType::ofTensor());
  });
  const auto* lines = dynamic_cast<const ByArgument*>(&rule);
  const bool is_term = lines != nullptr && std::ranges::any_of(lines->vjps(), [&](const Vjp& vjp) {
                         return vjp.arg == arg && vjp.symmetric != nullptr;
                       });
  return is_term && tensors > 1 ? name + "_reduced" : "";
}

// Raises an error if the lines ask for something that a graph does not know.
LineFormula evaluate(
    const Node& node,
    const VjpRule& rule,
    const std::bitset<64>& wanted,
    Formula::Variant variant) {
  const auto& schema = node.schema();
  TORCH_CHECK(!schema.argumentIndexWithName("grad"), "the name of the cotangent is taken");
  TORCH_CHECK(!wanted[0] || !lacks_first(schema.name()), "there is no line for the first argument");
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto op = dispatcher.findSchema(schema.operator_name());
  const auto other = torch::jit::parseName(operator_with_lines(full_name(schema)));
  Formula formula(variant);
  Args args;
  std::vector<Target> targets;
  LineFormula result;
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    const std::string& name = schema.arguments()[i].name();
    args.push_back(symbolic_argument(formula, name, *node.input(i)));
    if (wanted[i] && rule.knows(i)) {
      TORCH_CHECK(args[i].isTensor(), "there is no line for the list ", name);
      const auto sizes = formula.sizes_of(name);
      targets.emplace_back(
          i, 0, sizes, at::ScalarType::Undefined, kHost, /*is_column_major=*/false);
      result.arguments.push_back(i);
    }
  }
  Args results;
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    TORCH_CHECK(i == 0 || !rule.differentiates(i), "a gradient of several results");
    results.emplace_back(formula.tensor(name_of_result(i)));
  }
  const std::vector<at::Tensor> cotangents{formula.tensor("grad")};
  std::vector<at::Tensor> gradients(targets.size());
  const auto is_wanted = [](size_t) { return true; };
  VjpCall call(
      Operator::of(op ? *op : dispatcher.findSchema(other).value()),
      args,
      results,
      targets,
      cotangents,
      is_wanted,
      gradients);
  rule.vjp(call);

  for (size_t i = 0; i < targets.size(); ++i) {
    if (!gradients[i].defined()) {
      formula.graph().registerOutput(formula.graph().insertConstant(c10::IValue()));
      continue;
    }
    Value* gradient = value_of(gradients[i]);
    const std::string size = size_to_sum_to(rule, schema, targets[i].arg);
    if (!size.empty()) {
      Value* length = formula.input(size, c10::OptionalType::create(c10::ListType::ofInts()));
      gradient = formula.add("aten::_grad_sum_to_size", {gradient, length});
    }
    formula.graph().registerOutput(gradient);
  }
  result.graph = formula.shared_graph();
  torch::jit::EliminateCommonSubexpression(result.graph); // of several gradients, and constants
  result.names = formula.names();
  return result;
}

// Lines that decide by a tensor's number of dimensions give different formulas for different ones.
std::optional<LineFormula> evaluate(
    const Node& node, const VjpRule& rule, const std::bitset<64>& wanted) {
  try {
    LineFormula formula = evaluate(node, rule, wanted, Formula::Variant::First);
    const LineFormula other = evaluate(node, rule, wanted, Formula::Variant::Second);
    const bool are_equal = formula.names == other.names &&
                           formula.graph->toString(false) == other.graph->toString(false);
    return are_equal ? std::optional(std::move(formula)) : std::nullopt;
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

} // namespace

bool lines_differentiate(const Node& node, size_t output) {
  const VjpRule* rule = rule_of(node);
  return rule == nullptr || rule->differentiates(output);
}

const LineFormula* line_formula(const Node& node, const std::bitset<64>& arguments) {
  static std::mutex mutex;
  static auto* known = new std::unordered_map<std::string, std::optional<LineFormula>>();
  const VjpRule* rule = rule_of(node);
  if (rule == nullptr) {
    return nullptr;
  }
  std::ostringstream key;
  key << full_name(node.schema()) << arguments << ";";
  for (const Value* input : node.inputs()) {
    describe(*input, key);
  }
  const std::lock_guard<std::mutex> guard(mutex);
  auto [place, is_new] = known->try_emplace(key.str());
  if (is_new) {
    const c10::impl::ExcludeDispatchKeyGuard without_layers(kOurKeys | kTorchFuncKeys);
    place->second = evaluate(node, *rule, arguments);
  }
  return place->second ? &*place->second : nullptr;
}

} // namespace torchlayers::graph
