// Runs a package of ExportedFunction.to_aot on tensors in a file, and writes its results to
// another:
//   run_package f.pt2 inputs.pt outputs.pt
// The files are those of torch.save and torch.load, inputs a list and results a tuple of tensors.
#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <vector>

namespace {

std::vector<at::Tensor> read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const c10::IValue value = torch::jit::pickle_load(bytes);
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& element : value.toListRef()) {
    tensors.push_back(element.toTensor());
  }
  return tensors;
}

void write(const char* path, const std::vector<at::Tensor>& tensors) {
  // A plain tuple: torch.load refuses TorchScript's lists of tensors.
  const std::vector<c10::IValue> values(tensors.begin(), tensors.end());
  const std::vector<char> bytes = torch::jit::pickle_save(c10::ivalue::Tuple::create(values));
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

} // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    std::cerr << "run_package PACKAGE INPUTS OUTPUTS\n";
    return 2;
  }
  const c10::InferenceMode mode;
  torch::inductor::AOTIModelPackageLoader package(arguments[1]);
  std::vector<at::Tensor> inputs = read(arguments[2]);
  write(arguments[3], package.run(inputs));
}
