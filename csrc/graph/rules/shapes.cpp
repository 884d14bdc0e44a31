// Views and rearrangements: the gradient is the cotangent, put back in place.
#include "../rules.h"

namespace torchlayers::graph {

Rules shape_rules() {
  const std::string as_before = "grad.reshape(self_size)";
  return {
      {"aten::slice.Tensor",
       {{"self",
         "torch.slice_backward(grad, self_size, dim, bounds(start, end)[0], "
         "bounds(start, end)[1], step)"}}},
      {"aten::select.int", {{"self", "torch.select_backward(grad, self_size, dim, index)"}}},
      {"aten::narrow",
       {{"self", "torch.slice_backward(grad, self_size, dim, start, start + length, 1)"}}},
      {"aten::index_select",
       {{"self", "torch.index_select_backward(grad, self_size, dim, index)"}}},
      {"aten::index.Tensor", {{"self", "scattered(grad, self_size, indices)"}}},
      {"aten::gather", {{"self", "torch.gather_backward(grad, self, dim, index, sparse_grad)"}}},
      {"aten::flatten.using_ints", {{"self", as_before}}},
      {"aten::unflatten.int", {{"self", as_before}}},
      {"aten::view", {{"self", as_before}}},
      {"aten::reshape", {{"self", as_before}}},
      {"aten::view_as", {{"self", as_before}}},
      {"aten::reshape_as", {{"self", as_before}}},
      {"aten::squeeze", {{"self", as_before}}},
      {"aten::squeeze.dim", {{"self", as_before}}},
      {"aten::squeeze.dims", {{"self", as_before}}},
      {"aten::numpy_T", {{"self", "grad.t()"}}},
      {"aten::mT", {{"self", "grad.transpose(-2, -1)"}}},
      {"aten::movedim.int", {{"self", "torch.movedim(grad, destination, source)"}}},
      {"aten::movedim.intlist", {{"self", "torch.movedim(grad, destination, source)"}}},
      {"aten::permute", {{"self", "unpermuted(grad, dims)"}}},
      {"aten::flip", {{"self", "grad.flip(dims)"}}},
      {"aten::roll", {{"self", "torch.roll(grad, [-s for s in shifts], dims)"}}},
      {"aten::rot90", {{"self", "torch.rot90(grad, -k, dims)"}}},
      {"aten::expand", {{"self", "torch._grad_sum_to_size(grad, self_size)"}}},
      {"aten::expand_as", {{"self", "torch._grad_sum_to_size(grad, self_size)"}}},
      {"aten::broadcast_to", {{"self", "torch._grad_sum_to_size(grad, self_size)"}}},
      {"aten::repeat", {{"self", "unrepeated(grad, self_size, repeats)"}}},
      {"aten::triu", {{"self", "grad.triu(diagonal)"}}},
      {"aten::tril", {{"self", "grad.tril(diagonal)"}}},
      {"aten::diagonal",
       {{"self", "torch.diagonal_backward(grad, self_size, offset, dim1, dim2)"}}},
      {"aten::constant_pad_nd", {{"self", "torch.constant_pad_nd(grad, [-p for p in pad], 0)"}}},
  };
}

} // namespace torchlayers::graph
