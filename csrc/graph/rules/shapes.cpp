// Views and rearrangements: the gradient is the cotangent, put back in place.
#include "graph/rules.h"

namespace torchlayers::graph {

GraphRules shape_rules() {
  const std::string as_before = "grad.reshape(self_size)";
  const std::vector<Derivative> index_put{
      {"self",
       "grad if accumulate else torch.index_put(grad, indices, torch.zeros_like(grad.sum()))"},
      {"values", "torch._grad_sum_to_size(torch.index(grad, indices), values_size)"}};
  return {

      {"aten::narrow",
       {{"self", "torch.slice_backward(grad, self_size, dim, start, start + length, 1)"}}},
      {"aten::index_put", index_put},
      {"aten::index_put.hacked_twin", index_put},
      {"aten::index_add", {{"self", "grad"}, {"source", "grad.index_select(dim, index) * alpha"}}},
      {"aten::scatter.src",
       {{"self", "grad.scatter(dim, index, 0)"}, {"src", "grad.gather(dim, index)"}}},
      {"aten::scatter_add", {{"self", "grad"}, {"src", "grad.gather(dim, index)"}}},
      {"aten::select_scatter",
       {{"self",
         "torch.select_scatter(grad, torch.zeros_like(grad.select(dim, index)), dim, index)"},
        {"src", "grad.select(dim, index)"}}},
      {"aten::slice_scatter",
       {{"self",
         "torch.slice_scatter(grad, torch.zeros_like(torch.slice(grad, dim, start, end, step)), "
         "dim, start, end, step)"},
        {"src", "torch.slice(grad, dim, start, end, step)"}}},
      // csrc/rules has a line for it, but its gradient is never sparse.
      {"aten::gather", {{"self", "torch.gather_backward(grad, self, dim, index, sparse_grad)"}}},
      {"aten::flatten.using_ints", {{"self", as_before}}},
      {"aten::unflatten.int", {{"self", as_before}}},
      {"aten::reshape", {{"self", as_before}}},
      {"aten::view_as", {{"self", as_before}}},
      {"aten::reshape_as", {{"self", as_before}}},
      {"aten::atleast_1d", {{"self", as_before}}},
      {"aten::atleast_2d", {{"self", as_before}}},
      {"aten::atleast_3d", {{"self", as_before}}},
      {"aten::numpy_T", {{"self", "grad.t()"}}},
      {"aten::mT", {{"self", "grad.transpose(-2, -1)"}}},
      {"aten::mH", {{"self", "grad.transpose(-2, -1)"}}},
      {"aten::repeat_interleave.self_int",
       {{"self", "each_repeated(grad, self_size, repeats, dim)"}}},
      {"aten::movedim.int", {{"self", "torch.movedim(grad, destination, source)"}}},
      {"aten::movedim.intlist", {{"self", "torch.movedim(grad, destination, source)"}}},
      {"aten::expand", {{"self", "torch._grad_sum_to_size(grad, self_size)"}}},
      {"aten::expand_as", {{"self", "torch._grad_sum_to_size(grad, self_size)"}}},
      {"aten::broadcast_to", {{"self", "torch._grad_sum_to_size(grad, self_size)"}}},
      {"aten::constant_pad_nd", {{"self", "torch.constant_pad_nd(grad, [-p for p in pad], 0)"}}},
  };
}

} // namespace torchlayers::graph
