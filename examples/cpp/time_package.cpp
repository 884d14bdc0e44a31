// Prints the sum of each result of a package, and the time of a call in microseconds:
//   time_package CALLS f.pt2 3 256,3 double:5,100
// runs it on evenly spaced numbers from -1 to 1, in tensors of float32 of shapes (3) and (256, 3),
// and one of float64 of shape (5, 100).
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

at::Tensor ramp(const std::string& argument) {
  const std::string prefix = "double:";
  const bool is_double = argument.starts_with(prefix);
  std::vector<int64_t> shape;
  std::stringstream text(is_double ? argument.substr(prefix.size()) : argument);
  for (std::string size; std::getline(text, size, ',');) {
    shape.push_back(std::stoll(size));
  }
  const at::Tensor like = at::empty(shape, is_double ? at::kDouble : at::kFloat);
  return at::linspace(-1, 1, like.numel(), like.options()).reshape(shape);
}

} // namespace

int main(int count, char** arguments) {
  if (count < 4) {
    std::cerr << "time_package CALLS PACKAGE SHAPE...\n";
    return 2;
  }
  std::cout.precision(15);
  at::set_num_threads(1);
  const c10::InferenceMode mode;
  torch::inductor::AOTIModelPackageLoader package(
      arguments[2], "model", /*run_single_threaded=*/true);
  std::vector<at::Tensor> inputs;
  for (int i = 3; i < count; ++i) {
    inputs.push_back(ramp(arguments[i]));
  }
  for (const at::Tensor& result : package.run(inputs)) {
    std::cout << result.sum().item<double>() << " ";
  }
  const int calls = std::stoi(arguments[1]);
  double best = 1e30;
  for (int round = 0; round < 7; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < calls; ++call) {
      package.run(inputs);
    }
    const std::chrono::duration<double, std::micro> passed =
        std::chrono::steady_clock::now() - start;
    best = std::min(best, passed.count() / calls);
  }
  std::cout << best << "\n";
}
