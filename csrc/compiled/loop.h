// A scan: runs a program again and again, on slices of tensors, with a carry.
#pragma once

#include <memory>

#include "compiled/program.h"

namespace torchlayers::compiled {

struct Loop {
  // Takes the carry, a slice of each x, and the other tensors that it reads, all contiguous; leaves
  // the next carry and the ys, contiguous too, each in separate memory.
  std::shared_ptr<const Program> body;
  size_t carried = 0;
  size_t sliced = 0; // at least one

  // Takes the first carry, the xs and the rest off the stack; leaves a list of the last carry and
  // the ys.
  void run(torch::jit::Stack& stack) const;

 private:
  bool run_planned(const torch::jit::Stack& given, std::vector<at::Tensor>& results) const;
  void run_each(torch::jit::Stack& given, std::vector<at::Tensor>& results) const;
};

} // namespace torchlayers::compiled
