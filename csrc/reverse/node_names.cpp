#include "reverse/node_names.h"

#include <cctype>
#include <string_view>
#include <unordered_map>

#include "rules/lookup.h"

namespace torchlayers {
namespace {

// torch numbers the nodes of an operator's overloads in the order of derivatives.yaml. Those not
// listed here have 0; tests/rules/reverse/test_node_names.py compares all of them with that file.
const std::unordered_map<std::string_view, int>& numbers() {
  static const auto* all = new std::unordered_map<std::string_view, int>{
      {"_convolution", 1},
      {"_ctc_loss.Tensor", 1},
      {"_native_batch_norm_legit.no_stats", 1},
      {"_to_sparse", 1},
      {"add.Scalar", 1},
      {"clamp", 1},
      {"clamp_max.Tensor", 1},
      {"clamp_min.Tensor", 1},
      {"copysign.Scalar", 1},
      {"div.Scalar", 1},
      {"div.Tensor_mode", 2},
      {"div.Scalar_mode", 3},
      {"fill.Tensor", 1},
      {"fmod.Tensor", 1},
      {"index_fill.int_Tensor", 1},
      {"lerp.Tensor", 1},
      {"masked_fill.Tensor", 1},
      {"max", 1},
      {"mean.dim", 1},
      {"median.dim", 1},
      {"min", 1},
      {"mul.Scalar", 1},
      {"nanmedian.dim", 1},
      {"norm.ScalarOpt_dim", 1},
      {"norm.ScalarOpt_dtype", 2},
      {"norm.ScalarOpt_dim_dtype", 3},
      {"normal.Tensor_float", 1},
      {"normal.float_Tensor", 2},
      {"normal.Tensor_Tensor", 3},
      {"pow.Tensor_Tensor", 1},
      {"pow.Scalar", 2},
      {"prod.dim_int", 1},
      {"remainder.Tensor", 1},
      {"round.decimals", 1},
      {"rsub.Scalar", 1},
      {"scatter.value", 1},
      {"sort.stable", 1},
      {"special_xlog1py.self_scalar", 1},
      {"special_xlog1py.other_scalar", 2},
      {"special_zeta.self_scalar", 1},
      {"special_zeta.other_scalar", 2},
      {"squeeze.dim", 1},
      {"squeeze.dims", 2},
      {"sub.Scalar", 1},
      {"sum.dim_IntList", 1},
      {"xlogy.Scalar_Self", 1},
      {"xlogy.Scalar_Other", 2}};
  return *all;
}

// "NllLoss2D" for nll_loss2d: a letter is a capital if no letter comes before it.
std::string in_capitals(const std::string& base) {
  std::string name;
  bool starts_word = true;
  for (const char c : base) {
    const auto letter = static_cast<unsigned char>(c);
    if (c != '_') {
      name += static_cast<char>(starts_word ? std::toupper(letter) : std::tolower(letter));
    }
    starts_word = std::isalpha(letter) == 0;
  }
  return name;
}

std::string node_name(const c10::OperatorName& op) {
  const std::string base = op.name.substr(op.name.find("::") + 2);
  std::string name = in_capitals(base) + "Backward";
  // The node of log_sigmoid_forward has the name of log_sigmoid's.
  const std::string both = "ForwardBackward";
  if (const size_t at = name.find(both); at != std::string::npos) {
    name.replace(at, both.size(), "Backward");
  }
  const auto& overload = op.overload_name;
  const auto found = numbers().find(overload.empty() ? base : base + "." + overload);
  return name + std::to_string(found == numbers().end() ? 0 : found->second);
}

} // namespace

std::string node_name(const Operator& op) {
  const auto& name = op.handle.operator_name();
  const auto view = view_copied_by(name);
  return view ? node_name(*view) + "_copy" : node_name(name);
}

} // namespace torchlayers
