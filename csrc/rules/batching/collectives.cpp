// Collectives of torch.distributed: one call for the whole batch. They split and join dimension 0
// of a sample, so the batch dimension moves behind it, and they need contiguous tensors.
#include "rules/collectives/collectives.h"

#include "core/aten_functions.h"
#include "core/errors.h"
#include "rules/batching/families.h"

namespace torchlayers {
namespace {

// op(x, ...), where op is elementwise.
bool of_each_element(BatchedCall& call, size_t) {
  return call.only(0) && call.run();
}

at::Tensor behind(const at::Tensor& value) {
  return value.movedim(0, 1).contiguous();
}

at::Tensor in_front(const at::Tensor& result) {
  return result.movedim(1, 0);
}

void check_has_dimension(const BatchedCall& call, const at::Tensor& sample) {
  if (sample.dim() == 0) {
    raise_as(
        ErrorClass::BatchedOperator,
        "{} can't run {}: it splits or joins dimension 0 of a sample, but the samples have no "
        "dimensions. Use x.unsqueeze(0).",
        call.layer_name(),
        call.op().name());
  }
}

// op(x, ...), along dimension 0.
bool along_first(BatchedCall& call, size_t) {
  if (!call.only(0)) {
    return false;
  }
  check_has_dimension(call, call.tensor(0));
  return call.give([&] {
    return in_front(call.call(call.args_with([&](size_t) { return behind(call.value(0)); })));
  });
}

// The layout of a list's values: an operator that sends them needs contiguous ones, and one that
// waits for them must not copy them before they arrive.
enum class Layout { AsItIs, Contiguous, BatchBehind };

at::Tensor laid_out(const at::Tensor& value, bool is_batched, Layout layout) {
  if (layout == Layout::AsItIs) {
    return value;
  }
  return is_batched && layout == Layout::BatchBehind ? behind(value) : value.contiguous();
}

// op(xs, ...), where some members are batched. Unbatched members are sent once.
template <Layout layout>
bool list(BatchedCall& call, size_t) {
  constexpr bool is_along_first = layout == Layout::BatchBehind;
  std::vector<bool> is_batched;
  for (const c10::IValue& each : call[0].toListRef()) {
    const at::Tensor& x = each.toTensor();
    is_batched.push_back(call.is_batched(x));
    if (is_batched.back() && is_along_first) {
      check_has_dimension(call, x);
    }
  }
  return call.give_list(is_batched, [&] {
    std::vector<at::Tensor> values;
    for (const c10::IValue& each : call[0].toListRef()) {
      values.push_back(laid_out(call.value(each.toTensor()), is_batched[values.size()], layout));
    }
    Args args = call.args_with([](size_t) { return at::Tensor(); });
    args[0] = values;
    std::vector<at::Tensor> results = call.call_list(std::move(args));
    for (size_t i = 0; i < results.size(); ++i) {
      if (is_along_first && is_batched[i]) {
        results[i] = in_front(results[i]);
      }
    }
    return results;
  });
}

// Decomposes an in-place collective into the functional one and a copy.
bool decomposed(BatchedCall& call, size_t) {
  return call.any_batched() && call.decompose();
}

} // namespace

void add_batched_collectives(BatchingTable& rules) {
  rules.add(
      {"_c10d_functional::all_reduce",
       "_c10d_functional::broadcast",
       "_c10d_functional::wait_tensor",
       "_c10d_functional::_wrap_tensor_autograd"},
      {of_each_element});
  rules.add(
      {"_c10d_functional::all_gather_into_tensor",
       "_c10d_functional::reduce_scatter_tensor",
       "_c10d_functional::all_to_all_single",
       "_c10d_functional_autograd::all_gather_into_tensor",
       "_c10d_functional_autograd::reduce_scatter_tensor",
       "_c10d_functional_autograd::all_to_all_single"},
      {along_first});
  rules.add(
      {"_c10d_functional::all_reduce_coalesced",
       "torchlayers::pvary_each",
       "torchlayers::psum_each",
       "torchlayers::psum_invariant_each"},
      {list<Layout::Contiguous>});
  rules.add(
      {"_c10d_functional::all_gather_into_tensor_coalesced",
       "_c10d_functional::reduce_scatter_tensor_coalesced"},
      {list<Layout::BatchBehind>});
  rules.add({"_c10d_functional::wait_tensors"}, {list<Layout::AsItIs>});
  rules.add(
      {"c10d::allreduce_",
       "c10d::allreduce_coalesced_",
       "c10d::broadcast_",
       "c10d::allgather_",
       "c10d::_allgather_base_",
       "c10d::allgather_into_tensor_coalesced_",
       "c10d::allgather_coalesced_",
       "c10d::reduce_scatter_",
       "c10d::_reduce_scatter_base_",
       "c10d::reduce_scatter_tensor_coalesced_",
       "c10d::alltoall_",
       "c10d::alltoall_base_",
       "c10d::reduce_",
       "c10d::gather_",
       "c10d::scatter_",
       "c10d::send",
       "c10d::recv_",
       "c10d::recv_any_source_",
       "_c10d_functional::all_reduce_",
       "_c10d_functional::broadcast_",
       "_c10d_functional::all_reduce_coalesced_",
       "_c10d_functional::all_gather_into_tensor_out",
       "_c10d_functional::reduce_scatter_tensor_out",
       "_c10d_functional::isend",
       "_c10d_functional::irecv",
       "_c10d_functional::batch_p2p_ops"},
      {decomposed});
}

} // namespace torchlayers
