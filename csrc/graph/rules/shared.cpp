// Derivatives taken from csrc/rules: its lines, translated to TorchScript. A function that a line
// calls is ATen's, or is defined in helpers.cpp by the same name.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <unordered_map>

#include "graph/rules.h"
#include "rules/table.h"

namespace torchlayers::graph {

namespace {

// What a line's words are called in TorchScript.
const std::unordered_map<std::string_view, const char*>& script_words() {
  static const std::unordered_map<std::string_view, const char*> words{
      {"y", "result"},
      {"g", "grad"},
      {"t", "grad"},
      {"true", "True"},
      {"false", "False"},
      {"M_LN2", "0.6931471805599453"},
      {"kEnd", "9223372036854775807"}};
  return words;
}

// Translates a line to TorchScript, word by word. Its arguments, like c[1] and c.flag(2), get the
// schema's names.
class Translation {
 public:
  Translation(std::string_view line, const c10::FunctionSchema& schema)
      : rest_(line), schema_(schema) {}

  std::string script() {
    while (!rest_.empty()) {
      if (take("/*")) {
        rest_.remove_prefix(rest_.find("*/") + 2);
      } else if (take("at::")) {
        script_ += "torch.";
      } else if (take("{}")) {
        script_ += "None";
      } else if (in_word(rest_[0])) {
        add(word());
      } else {
        script_ += rest_[0];
        rest_.remove_prefix(1);
      }
    }
    return script_;
  }

 private:
  static bool in_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  }

  bool take(std::string_view start) {
    const bool taken = rest_.starts_with(start);
    rest_.remove_prefix(taken ? start.size() : 0);
    return taken;
  }

  std::string_view word() {
    const auto end = std::find_if_not(rest_.begin(), rest_.end(), in_word);
    const auto word = rest_.substr(0, end - rest_.begin());
    rest_.remove_prefix(word.size());
    return word;
  }

  void add(std::string_view word) {
    constexpr std::string_view kSymint = "_symint";
    const auto& words = script_words();
    if (word == "x") {
      script_ += argument(0);
    } else if (word == "c" && take("[")) {
      script_ += argument(number());
    } else if (word == "c" && take(".")) {
      add_read(this->word());
    } else if (const auto found = words.find(word); found != words.end()) {
      script_ += found->second;
    } else {
      if (rest_.starts_with('(') && word.ends_with(kSymint)) {
        word.remove_suffix(kSymint.size());
      }
      script_ += word;
    }
  }

  // c.flag(2), c.sizes_of(0), c.result(1)
  void add_read(std::string_view method) {
    take("(");
    const size_t place = number();
    script_ += method == "result" ? "result" + std::to_string(place) : argument(place);
    script_ += method == "sizes_of" ? "_size" : "";
  }

  // A number and the bracket after it.
  size_t number() {
    const std::string digits(word());
    rest_.remove_prefix(1);
    return std::stoul(digits);
  }

  const std::string& argument(size_t place) const {
    return schema_.arguments()[place].name();
  }

  std::string_view rest_;
  const c10::FunctionSchema& schema_;
  std::string script_;
};

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
    const std::string script = Translation(vjp.line, schema).script();
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
