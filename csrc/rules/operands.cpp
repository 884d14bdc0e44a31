#include "rules/operands.h"

namespace torchlayers {

const at::Tensor Operands::undefined_;

int64_t Operands::dim_of(const c10::IValue& number) {
  const c10::SymInt dim = number.toSymInt();
  auto* symbolic =
      dim.is_heap_allocated() ? dynamic_cast<SymbolicDim*>(dim.toSymNodeImplUnowned()) : nullptr;
  return symbolic != nullptr ? symbolic->as_dim() : number.toInt();
}

std::vector<int64_t> Operands::dims_of(const c10::IValue& numbers) {
  std::vector<int64_t> dims;
  for (const c10::IValue& number : numbers.toListRef()) {
    dims.push_back(dim_of(number));
  }
  return dims;
}

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
