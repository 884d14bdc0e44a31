// Custom operators of differentiated graphs, without an equivalent in torch. Most handle a tensor
// that was split into parts, given the cotangents of some of them: cotangents may be undefined, but
// at least one is defined. NOTE [Joining what was cut]
#include <torch/csrc/jit/runtime/custom_operator.h>

#include "core/aten_functions.h"

namespace {

using torch::jit::Operation;
using torch::jit::Operator;
using torch::jit::pop;
using torch::jit::push;
using torch::jit::Stack;

struct Cut {
  c10::List<at::Tensor> cotangents;
  c10::List<int64_t> places;
  std::vector<int64_t> size;
  int64_t dim = 0;

  const at::Tensor defined() const {
    for (const at::Tensor& cotangent : cotangents) {
      if (cotangent.defined()) {
        return cotangent;
      }
    }
    TORCH_CHECK(false, "torchlayers: no part of a tensor has a cotangent");
  }

  // The cotangents of all parts: zeros for those that have none, and sums for those with several.
  std::vector<at::Tensor> filled(const std::vector<std::vector<int64_t>>& shapes) const {
    std::vector<at::Tensor> parts(shapes.size());
    for (size_t i = 0; i < cotangents.size(); ++i) {
      const at::Tensor cotangent = cotangents[i];
      if (cotangent.defined()) {
        at::Tensor& part = parts.at(at::maybe_wrap_dim(places[i], int64_t(shapes.size())));
        part = part.defined() ? part + cotangent : cotangent;
      }
    }
    const at::Tensor like = defined();
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!parts[i].defined()) {
        parts[i] = at::zeros(shapes[i], like.options());
      }
    }
    return parts;
  }

  at::Tensor joined(const std::vector<int64_t>& lengths) const {
    std::vector<std::vector<int64_t>> shapes;
    for (const int64_t length : lengths) {
      shapes.push_back(size);
      shapes.back().at(dim) = length;
    }
    return at::cat(filled(shapes), dim);
  }

  // Parts of this length; the last one gets the rest.
  std::vector<int64_t> equal_lengths(int64_t length) const {
    std::vector<int64_t> lengths;
    int64_t rest = size.at(dim);
    do {
      lengths.push_back(std::min(length, rest));
      rest -= lengths.back();
    } while (rest > 0);
    return lengths;
  }
};

Cut pop_cut(Stack& stack, c10::IValue* argument) {
  Cut cut;
  const int64_t dim = pop(stack).toInt();
  if (argument != nullptr) {
    *argument = pop(stack);
  }
  cut.size = pop(stack).toIntVector();
  cut.places = pop(stack).toIntList();
  cut.cotangents = pop(stack).toTensorList();
  cut.dim = at::maybe_wrap_dim(dim, int64_t(cut.size.size()));
  return cut;
}

void unbind_backward(Stack& stack) {
  const Cut cut = pop_cut(stack, nullptr);
  auto shape = cut.size;
  shape.erase(shape.begin() + cut.dim);
  push(stack, at::stack(cut.filled({size_t(cut.size[cut.dim]), shape}), cut.dim));
}

void split_with_sizes_backward(Stack& stack) {
  c10::IValue lengths;
  const Cut cut = pop_cut(stack, &lengths);
  push(stack, cut.joined(lengths.toIntVector()));
}

void split_backward(Stack& stack) {
  c10::IValue length;
  const Cut cut = pop_cut(stack, &length);
  push(stack, cut.joined(cut.equal_lengths(length.toInt())));
}

void chunk_backward(Stack& stack) {
  c10::IValue chunks;
  const Cut cut = pop_cut(stack, &chunks);
  const int64_t number = chunks.toInt();
  push(stack, cut.joined(cut.equal_lengths((cut.size[cut.dim] + number - 1) / number)));
}

Operator declared(const std::string& name, const std::string& argument, void (*run)(Stack&)) {
  return Operator(
      "torchlayers::" + name + "(Tensor[] cotangents, int[] places, int[] size, " + argument +
          "int dim) -> Tensor",
      Operation(run),
      c10::AliasAnalysisKind::FROM_SCHEMA);
}

// aten::numel has no batching rule; sizes do.
void elements_of_size(Stack& stack) {
  int64_t product = 1;
  for (const int64_t length : pop(stack).toIntVector()) {
    product *= length;
  }
  push(stack, product);
}

const torch::jit::RegisterOperators registered({
    Operator(
        "torchlayers::elements_of_size(int[] size) -> int",
        Operation(elements_of_size),
        c10::AliasAnalysisKind::FROM_SCHEMA),
    declared("unbind_backward", "", unbind_backward),
    declared("split_with_sizes_backward", "int[] split_sizes, ", split_with_sizes_backward),
    declared("split_backward", "int split_size, ", split_backward),
    declared("chunk_backward", "int chunks, ", chunk_backward),
});

} // namespace
