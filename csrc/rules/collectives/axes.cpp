// The operators on named axes, and their rules for tangents and cotangents.
#include "rules/collectives/axes.h"

#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <functional>

#include "core/aten_functions.h"
#include "core/callbacks.h"
#include "core/device.h"
#include "core/errors.h"
#include "rules/collectives/collectives.h"
#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {

std::vector<int64_t> inverse_sources(const std::vector<int64_t>& sources) {
  std::vector<int64_t> inverse(sources.size(), -1);
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i] >= 0) {
      inverse[sources[i]] = static_cast<int64_t>(i);
    }
  }
  return inverse;
}

namespace {

std::atomic<int> comparing_ranks{0};

} // namespace

ComparingRanks::ComparingRanks() {
  ++comparing_ranks;
}
ComparingRanks::~ComparingRanks() {
  --comparing_ranks;
}

namespace {

using at::Tensor;

// ---- kernels: over ranks

// Raises on every rank unless all of them are at the same collective, with a tensor like this one.
// The backends take that for granted: otherwise they hang, abort, or return uninitialized memory.
void check_all_are_at(
    const char* ours, const char* name, const Tensor& x, const c10::IValue& group) {
  const std::string call = c10::str(ours, " of ", x.scalar_type(), x.sizes());
  const auto mark = static_cast<int64_t>(std::hash<std::string>{}(c10::str(name, call)) >> 1);
  const Tensor both = at::tensor({mark, -mark}, x.options().dtype(at::kLong));
  const Tensor largest = collective("all_reduce", both, {"max", group}).to(kHost);
  if (largest[0].item<int64_t>() != -largest[1].item<int64_t>()) {
    raise(
        "the ranks diverge: this one calls {}, but not all of them do. All ranks must call the "
        "same collectives in the same order, with tensors of the same dtypes and shapes.",
        call);
  }
}

// Runs the collective `name` for our operator `ours`. `alike` is a tensor whose dtype and shape all
// ranks share, for calls where those of x differ. If the backend fails (a rank is dead or late),
// the error names our operator.
Tensor over_ranks(
    const char* ours,
    const char* name,
    const Tensor& x,
    std::initializer_list<c10::IValue> rest,
    const Tensor& alike = Tensor()) {
  try {
    if (comparing_ranks > 0 && has_numbers(x)) { // a captured graph has no numbers to compare
      check_all_are_at(ours, name, alike.defined() ? alike : x, *(rest.end() - 1));
    }
    return collective(name, x, rest);
  } catch (c10::Error& error) {
    error.add_context(said("in {}, over ranks", ours));
    throw;
  } catch (const std::exception& error) {
    raise("{}, over ranks, failed: {}.", ours, error.what());
  }
}

void check_is_of_ranks(const std::string& axis) {
  if (is_of_vmap(axis)) {
    raise(
        "a collective over a vmap's axis (level {}) was called outside that vmap: an axis name is "
        "only valid inside the vmap that binds it.",
        axis.substr(1));
  }
}

Tensor psum_kernel(const Tensor& x, const std::string& axis) {
  check_is_of_ranks(axis);
  return over_ranks("psum", "all_reduce", x, {"sum", axis});
}

Tensor pmax_kernel(const Tensor& x, const std::string& axis) {
  check_is_of_ranks(axis);
  return over_ranks("pmax", "all_reduce", x, {"max", axis});
}

Tensor pvary_kernel(const Tensor& x, const std::string& axis) {
  check_is_of_ranks(axis);
  return x.clone();
}

// Result: (..., size, ...)
Tensor all_gather_kernel(const Tensor& x, int64_t dim, int64_t size, const std::string& axis) {
  check_is_of_ranks(axis);
  return over_ranks("all_gather", "all_gather_into_tensor", x.unsqueeze(0), {size, axis})
      .movedim(0, dim)
      .contiguous();
}

Tensor psum_scatter_kernel(const Tensor& x, int64_t dim, int64_t size, const std::string& axis) {
  check_is_of_ranks(axis);
  const Tensor parts = x.movedim(dim, 0);
  return over_ranks("psum_scatter", "reduce_scatter_tensor", parts, {"sum", size, axis}).squeeze(0);
}

Tensor all_to_all_kernel(
    const Tensor& x, int64_t split, int64_t join, int64_t size, const std::string& axis) {
  check_is_of_ranks(axis);
  const std::vector<int64_t> one(size, 1);
  const Tensor blocks = at::stack(x.chunk(size, split));
  return at::cat(
      over_ranks("all_to_all", "all_to_all_single", blocks, {one, one, axis}).unbind(0), join);
}

// Sends to one rank or none, and receives from one, or returns zeros.
Tensor ppermute_kernel(const Tensor& x, at::IntArrayRef sources, const std::string& axis) {
  check_is_of_ranks(axis);
  const auto rank = static_cast<size_t>(callbacks.rank_in_group(axis));
  const int64_t to = inverse_sources(sources.vec())[rank];
  std::vector<int64_t> sent(sources.size());
  std::vector<int64_t> received(sources.size());
  if (to >= 0) {
    sent[to] = 1;
  }
  if (sources[rank] >= 0) {
    received[sources[rank]] = 1;
  }
  const Tensor rows = x.unsqueeze(0).narrow(0, 0, to >= 0 ? 1 : 0);
  const Tensor result =
      over_ranks("ppermute", "all_to_all_single", rows, {received, sent, axis}, x);
  return sources[rank] >= 0 ? result.squeeze(0) : at::zeros_like(x);
}

Tensor axis_index_kernel(std::optional<at::Device> device, const std::string& axis) {
  check_is_of_ranks(axis);
  return at::scalar_tensor(
      callbacks.rank_in_group(axis),
      at::TensorOptions().dtype(at::kLong).device(device.value_or(kHost)));
}

// A dimension split over the ranks as torch.chunk splits it: the last parts are smaller, or empty.
int64_t largest_part(int64_t total, int64_t size) {
  return (total + size - 1) / size;
}

Tensor own_part_kernel(
    const Tensor& x, int64_t dim, int64_t total, int64_t size, const std::string& axis) {
  check_is_of_ranks(axis);
  const int64_t largest = largest_part(total, size);
  const int64_t start = std::min(largest * callbacks.rank_in_group(axis), total);
  return x.narrow(dim, start, std::min(largest, total - start)).clone(at::MemoryFormat::Contiguous);
}

// Collectives need parts of equal size: smaller ones are padded with rows of zeros.
Tensor joined_parts_kernel(
    const Tensor& x, int64_t dim, int64_t total, int64_t size, const std::string& axis) {
  check_is_of_ranks(axis);
  Tensor part = x.movedim(dim, 0);
  const int64_t missing = largest_part(total, size) - part.size(0);
  if (missing > 0) {
    std::vector<int64_t> rows = part.sizes().vec();
    rows[0] = missing;
    part = at::cat({part, part.new_zeros(rows)});
  }
  const Tensor all = over_ranks("the join of parts", "all_gather_into_tensor", part, {size, axis});
  return all.narrow(0, 0, total).movedim(0, dim).contiguous();
}

// Marks a value that all ranks have computed identically as one shared value.
Tensor shared_kernel(const Tensor& x, int64_t /*size*/) {
  return x.clone();
}

// Only called if no vmap resolved the operator. NOTE [Samples of their own].
Tensor moved_kernel(const Tensor& /*x*/, int64_t /*dim*/, const std::string& axis) {
  raise_as(
      ErrorClass::EscapedTensor,
      "the results of control flow on a predicate that is batched by a vmap (level {}) were used "
      "outside that vmap. Return them from the function that vmap calls.",
      axis.substr(1));
}

std::vector<Tensor> pvary_each_kernel(at::TensorList xs, const std::string& /*axis*/) {
  std::vector<Tensor> copies;
  for (const Tensor& x : xs) {
    copies.push_back(x.clone());
  }
  return copies;
}

// Tensors of one dtype and device are concatenated, and summed by one collective.
std::vector<Tensor> psum_each_kernel(at::TensorList xs, const std::string& axis) {
  std::vector<Tensor> sums(xs.size());
  for (size_t first = 0; first < xs.size(); ++first) {
    if (sums[first].defined()) {
      continue;
    }
    std::vector<Tensor> flat;
    std::vector<size_t> places;
    std::vector<int64_t> sizes;
    for (size_t i = first; i < xs.size(); ++i) {
      if (xs[i].scalar_type() == xs[first].scalar_type() && xs[i].device() == xs[first].device()) {
        flat.push_back(xs[i].reshape({-1}));
        places.push_back(i);
        sizes.push_back(xs[i].numel());
      }
    }
    const auto parts = psum_kernel(at::cat(flat), axis).split_with_sizes(sizes);
    for (size_t i = 0; i < places.size(); ++i) {
      sums[places[i]] = parts[i].view(xs[places[i]].sizes());
    }
  }
  return sums;
}

// ---- calls of these operators

Tensor on(const char* name, const Tensor& x, std::initializer_list<c10::IValue> rest) {
  Args args{x};
  args.insert(args.end(), rest);
  c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("torchlayers::") + name).c_str(), "")
      .callBoxed(&args);
  return args[0].toTensor();
}

// ---- tangents

// A value and its tangent go through one collective, stacked along a new last dimension.
void together(JvpCall& call) {
  const Tensor x = call[0];
  const Tensor t = call.tangent(0);
  const std::string& axis = call.arg(call.op().num_args - 1).toStringRef();
  if (is_of_vmap(axis) || !may_be_stacked(x, t)) {
    call.run();
    call.set_tangent(0, on_first(t, call));
    return;
  }
  const Tensor both = on_first(at::stack({x, t}, x.dim()), call);
  call.have_run({both.select(-1, 0).contiguous()});
  call.set_tangent(0, both.select(-1, 1).contiguous());
}

// For an operator on a list: transposes the members that have cotangents.
void transposed_by(VjpCall& call, const char* name) {
  std::vector<Tensor> cotangents;
  std::vector<size_t> members;
  for (size_t i = 0; i < call.cotangents().size(); ++i) {
    if (call.cotangents()[i].defined()) {
      cotangents.push_back(call.cotangents()[i]);
      members.push_back(i);
    }
  }
  Args args{cotangents, call.arg(1)};
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(&args);
  const std::vector<Tensor> gradients = args[0].toTensorVector();
  for (size_t i = 0; i < members.size(); ++i) {
    call.give(0, gradients[i], members[i]);
  }
}

void psum_each(VjpCall& call) {
  transposed_by(call, "torchlayers::psum_each");
}

void psum_invariant_each(VjpCall& call) {
  transposed_by(call, "torchlayers::psum_invariant_each");
}

void pvary_each(VjpCall& call) {
  transposed_by(call, "torchlayers::pvary_each");
}

// A mask of the largest values, divided by their number.
Tensor share_of_largest(const Tensor& x, const Tensor& y, const c10::IValue& axis) {
  const Tensor is_largest = at::eq(x, y).to(x.scalar_type());
  return is_largest / on("psum", is_largest, {axis});
}

void pmax(JvpCall& call) {
  call.run();
  const Tensor share = share_of_largest(call[0], call.result(), call.arg(1));
  call.set_tangent(0, on("psum", share * call.tangent(0), {call.arg(1)}));
}

TORCH_LIBRARY(torchlayers, library) {
  library.def("psum(Tensor x, str axis) -> Tensor");
  library.def("psum_invariant(Tensor x, str axis) -> Tensor");
  library.def("pvary(Tensor x, str axis) -> Tensor");
  library.def("pmax(Tensor x, str axis) -> Tensor");
  library.def("all_gather(Tensor x, int dim, int size, str axis) -> Tensor");
  library.def("psum_scatter(Tensor x, int dim, int size, str axis) -> Tensor");
  library.def("all_to_all(Tensor x, int split, int join, int size, str axis) -> Tensor");
  library.def("ppermute(Tensor x, int[] sources, str axis) -> Tensor");
  library.def("own_part(Tensor x, int dim, int total, int size, str axis) -> Tensor");
  library.def("joined_parts(Tensor x, int dim, int total, int size, str axis) -> Tensor");
  library.def("shared(Tensor x, int size) -> Tensor");
  library.def("pvary_each(Tensor[] xs, str axis) -> Tensor[]");
  library.def("psum_each(Tensor[] xs, str axis) -> Tensor[]");
  library.def("psum_invariant_each(Tensor[] xs, str axis) -> Tensor[]");
  library.def("axis_index(Device? device, str axis) -> Tensor");
  library.def("samples_to_dim(Tensor x, int dim, str axis) -> Tensor");
  library.def("dim_to_samples(Tensor x, int dim, str axis) -> Tensor");
}

TORCH_LIBRARY_IMPL(torchlayers, CompositeExplicitAutograd, library) {
  library.impl("psum", psum_kernel);
  library.impl("psum_invariant", psum_kernel);
  library.impl("pvary", pvary_kernel);
  library.impl("pmax", pmax_kernel);
  library.impl("all_gather", all_gather_kernel);
  library.impl("psum_scatter", psum_scatter_kernel);
  library.impl("all_to_all", all_to_all_kernel);
  library.impl("ppermute", ppermute_kernel);
  library.impl("own_part", own_part_kernel);
  library.impl("joined_parts", joined_parts_kernel);
  library.impl("shared", shared_kernel);
  library.impl("pvary_each", pvary_each_kernel);
  library.impl("psum_each", psum_each_kernel);
  library.impl("psum_invariant_each", psum_each_kernel);
  library.impl("axis_index", axis_index_kernel);
  library.impl("samples_to_dim", moved_kernel);
  library.impl("dim_to_samples", moved_kernel);
}

} // namespace

void add_axes(Table& rules) {
  rules["torchlayers::psum"].jvp(together).vjp(VJP(0, on("psum", g, {c.arg(1)})));
  rules["torchlayers::psum_invariant"].jvp(together).vjp(VJP(0, on("pvary", g, {c.arg(1)})));
  rules["torchlayers::pvary"].linear_in(0).vjp(VJP(0, on("psum_invariant", g, {c.arg(1)})));
  rules["torchlayers::pmax"].jvp(pmax).vjp(
      VJP(0, on("psum", g, {c.arg(1)}) * share_of_largest(x, y, c.arg(1))));
  rules["torchlayers::pvary_each"]
      .jvp(with_tangents_in_list)
      .vjp(psum_invariant_each, {.by = {"xs"}});
  rules["torchlayers::psum_each"].jvp(with_tangents_in_list).vjp(psum_each, {.by = {"xs"}});
  rules["torchlayers::psum_invariant_each"]
      .jvp(with_tangents_in_list)
      .vjp(pvary_each, {.by = {"xs"}});
  rules["torchlayers::all_gather"].jvp(together).vjp(
      VJP(0, on("psum_scatter", g, {c.arg(1), c.arg(2), c.arg(3)})));
  rules["torchlayers::psum_scatter"].jvp(together).vjp(
      VJP(0, on("all_gather", g, {c.arg(1), c.arg(2), c.arg(3)})));
  rules["torchlayers::all_to_all"].jvp(together).vjp(
      VJP(0, on("all_to_all", g, {c.arg(2), c.arg(1), c.arg(3), c.arg(4)})));
  rules["torchlayers::ppermute"].jvp(together).vjp(
      VJP(0, on("ppermute", g, {inverse_sources(c.integers(1)), c.arg(2)})));
  rules["torchlayers::own_part"].linear_in(0).vjp(
      VJP(0, on("joined_parts", g, {c.arg(1), c.arg(2), c.arg(3), c.arg(4)})));
  rules["torchlayers::joined_parts"].jvp(together).vjp(
      VJP(0, on("own_part", g, {c.arg(1), c.arg(2), c.arg(3), c.arg(4)})));
  // The cotangent of the one shared value is divided among the ranks.
  rules["torchlayers::shared"].linear_in(0).vjp(VJP(0, g / c.integer(1)));
  rules["torchlayers::samples_to_dim"].linear_in(0).vjp(
      VJP(0, on("dim_to_samples", g, {c.arg(1), c.arg(2)})));
  rules["torchlayers::dim_to_samples"].linear_in(0).vjp(
      VJP(0, on("samples_to_dim", g, {c.arg(1), c.arg(2)})));
}

} // namespace torchlayers
