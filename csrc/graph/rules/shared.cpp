// Derivatives taken from csrc/rules: its lines, translated to TorchScript. A function that a line
// calls is ATen's, or is defined in helpers.cpp by the same name.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <algorithm>
#include <regex>
#include <sstream>

#include "graph/rules.h"
#include "rules/table.h"

namespace torchlayers::graph {

namespace {

// Replaces references like c[1], c.flag(2), c.sizes_of(0) by the schema's argument names.
std::string spelled(std::string line, const c10::FunctionSchema& schema) {
  static const std::pair<std::regex, const char*> spellings[] = {
      {std::regex(R"(/\*.*?\*/)"), ""},
      {std::regex("at::"), "torch."},
      {std::regex(R"(_symint\()"), "("},
      {std::regex(R"(\bx\b)"), "c[0]"},
      {std::regex(R"(\by\b)"), "result"},
      {std::regex(R"(\b[gt]\b)"), "grad"},
      {std::regex("true"), "True"},
      {std::regex("false"), "False"},
      {std::regex("M_LN2"), "0.6931471805599453"},
      {std::regex(R"(\{\})"), "None"},
      {std::regex("kEnd"), "9223372036854775807"}};
  for (const auto& [ours, theirs] : spellings) {
    line = std::regex_replace(line, ours, theirs);
  }
  static const std::regex read_of_call(R"(\bc(\[|\.\w+\()(\d+)[\])])");
  std::string script;
  std::smatch found;
  while (std::regex_search(line, found, read_of_call)) {
    const std::string& argument = schema.arguments()[std::stoul(found[2])].name();
    script += found.prefix();
    script += found[1] == ".result(" ? "result" + found[2].str() : argument;
    script += found[1] == ".sizes_of(" ? "_size" : "";
    line = found.suffix();
  }
  return script + line;
}

bool may_broadcast(const Vjp& vjp, const c10::FunctionSchema& schema) {
  const auto& args = schema.arguments();
  const auto is_tensor = [](const auto& arg) {
    return arg.type()->isSubtypeOf(*c10::OptionalType::ofTensor());
  };
  return vjp.symmetric != nullptr && std::count_if(args.begin(), args.end(), is_tensor) > 1;
}

// The rule of an operator, from the lines of an operator with the same arguments.
GraphRule shared(const std::string& name, const std::string& lines_of) {
  const auto op = c10::Dispatcher::singleton().findSchema(torch::jit::parseName("aten::" + name));
  const auto& schema = op.value().schema();
  const auto* rule =
      dynamic_cast<const ByArgument*>(Table::find_vjp(torch::jit::parseName("aten::" + lines_of)));
  TORCH_INTERNAL_ASSERT(rule != nullptr, "no lines for ", lines_of);
  GraphRule shared{"aten::" + name, {}};
  for (const Vjp& vjp : rule->vjps()) {
    const std::string& input = schema.arguments()[vjp.arg].name();
    const std::string script = spelled(vjp.line, schema);
    shared.derivatives.push_back(
        {input,
         may_broadcast(vjp, schema)
             ? "torch._grad_sum_to_size(" + script + ", " + input + "_reduced)"
             : script});
  }
  return shared;
}

} // namespace

// Other operators with rules there use torch's formula, or functions that branch on properties of
// their tensors, which would have to be rewritten in TorchScript.
GraphRules shared_rules() {
  GraphRules rules{shared("max.other", "maximum"), shared("min.other", "minimum")};
  std::istringstream names(
      "maximum minimum pow.Tensor_Tensor pow.Scalar atan2 hypot logaddexp logaddexp2 xlogy.Tensor "
      "exp2 asinh acosh atanh lgamma digamma deg2rad rad2deg clamp_min clamp_max clamp.Tensor "
      "clamp_min.Tensor clamp_max.Tensor clone masked_fill.Scalar masked_fill.Tensor addcdiv "
      "max min max.dim min.dim median.dim mode kthvalue topk sort cummax cummin "
      "slice.Tensor select.int index_select index.Tensor scatter.value view squeeze squeeze.dim "
      "squeeze.dims pixel_shuffle pixel_unshuffle diag_embed permute flip roll rot90 repeat triu "
      "tril diagonal reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d "
      "elu hardtanh softplus glu softshrink mse_loss smooth_l1_loss huber_loss");
  for (std::string name; names >> name;) {
    rules.push_back(shared(name, name));
  }
  return rules;
}

} // namespace torchlayers::graph
