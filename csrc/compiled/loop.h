// Loops of programs with a carry: a scan, on slices of tensors, and a loop with a condition.
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

struct WhileLoop {
  // Both take the carry and the other tensors that are read. The condition leaves a tensor of one
  // element; the body the next carry, in memory that is not the last one's.
  std::shared_ptr<const Program> condition;
  std::shared_ptr<const Program> body;
  size_t carried = 0;

  // Takes the first carry and the rest off the stack; leaves a list of the last carry.
  void run(torch::jit::Stack& stack) const;

 private:
  bool goes_on(const torch::jit::Stack& carry, const torch::jit::Stack& given) const;
};

} // namespace torchlayers::compiled
