#include "rules/operands.h"

namespace torchlayers {

const at::Tensor Operands::undefined_;

Args Operands::all_with(const Replacements& replaced) const {
  Args args(args_, args_ + op_.num_args);
  for (const auto& [place, value] : replaced) {
    args[place] = value;
  }
  op_.call(args);
  return args;
}

at::Tensor Operands::with(const Replacements& replaced) const {
  return all_with(replaced)[0].toTensor();
}

} // namespace torchlayers
