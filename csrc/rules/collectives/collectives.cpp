// The functional collectives of torch.distributed, which return a new tensor. They are linear, and
// their rules read no values. The derivatives are torch's: the function that is differentiated is
// the sum of what all ranks return, so that a sum over ranks is its own transpose.
//
// A torch without torch.distributed lacks these operators, so they are looked up by name.
#include "rules/collectives/collectives.h"

#include <ATen/core/dispatch/Dispatcher.h>

#if __has_include(<torch/csrc/distributed/c10d/Types.hpp>)
#include <torch/csrc/distributed/c10d/Types.hpp>
#endif

#include <algorithm>
#include <array>
#include <cctype>

#include "core/aten_functions.h"
#include "core/callbacks.h"
#include "core/errors.h"
#include "rules/families.h"
#include "rules/rule_macros.h"
#include "values/wrapper.h"

namespace torchlayers {

using c10::IValue;

IValue call_collective(const char* name, Args args) {
  c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string(kCollectives) + name).c_str(), "")
      .callBoxed(&args);
  return args[0];
}

at::Tensor waited(const at::Tensor& pending) {
  return call_collective("wait_tensor", {pending}).toTensor();
}

// Collectives need contiguous tensors, and the argument may have any strides.
at::Tensor collective(const char* name, const at::Tensor& x, std::initializer_list<IValue> rest) {
  Args args{x.contiguous()};
  args.insert(args.end(), rest);
  return waited(call_collective(name, std::move(args)).toTensor());
}

bool have_one_dtype_and_shape(const at::Tensor& value, const at::Tensor& tangent) {
  return value.scalar_type() == tangent.scalar_type() && value.sizes() == tangent.sizes();
}

void with_tangents_in_list(JvpCall& call) {
  const std::vector<at::Tensor> xs = call.arg(0).toTensorVector();
  const auto tangents = call.tangents(0);
  std::vector<at::Tensor> all;
  for (const at::Tensor& x : xs) {
    all.push_back(x.contiguous());
  }
  for (const at::Tensor& tangent : tangents) {
    if (tangent.defined()) {
      all.push_back(tangent.contiguous());
    }
  }
  const auto results = call.all_with({{0, all}})[0].toTensorVector();
  std::vector<at::Tensor> of_values(
      results.begin(), results.begin() + static_cast<std::ptrdiff_t>(xs.size()));
  std::vector<at::Tensor> of_tangents;
  size_t next = xs.size();
  for (const at::Tensor& tangent : tangents) {
    of_tangents.push_back(tangent.defined() ? waited(results[next++]) : at::Tensor());
  }
  call.have_run({of_values});
  call.set_tangents(0, of_tangents);
}

// Compares sizes, not numbers of elements: a rank whose part is empty has to call the same
// collectives as the others.
bool may_be_stacked(const at::Tensor& value, const at::Tensor& tangent) {
  const auto sorted_sizes = [](const at::Tensor& x) {
    std::vector<int64_t> sizes = holder_of(x).sizes().vec();
    std::sort(sizes.begin(), sizes.end());
    return sizes;
  };
  return have_one_dtype_and_shape(value, tangent) && sorted_sizes(value) == sorted_sizes(tangent);
}

namespace {

std::string name_of_reduction(const IValue& reduction) {
#if __has_include(<torch/csrc/distributed/c10d/Types.hpp>)
  if (reduction.isCapsule()) { // a ReduceOp, accepted instead of its name since 2.15
    static constexpr std::array names{
        "sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"};
    return names.at(static_cast<const c10d::ReduceOp&>(*reduction.toCapsule()).op_);
  }
#endif
  std::string name = reduction.toStringRef();
  std::transform(
      name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

// Only for these is the derivative a collective.
std::string linear_reduction(const char* collective, const IValue& reduction) {
  const std::string name = name_of_reduction(reduction);
  if (name != "sum" && name != "avg") {
    raise(
        "{} with the reduction '{}' can't be differentiated: only 'sum' and 'avg' are linear. "
        "Gather the values with all_gather_single and reduce them with torch's operators, or "
        "detach() them.",
        collective,
        name);
  }
  return name;
}

// ---- tangents: a value and its tangent go through one collective if they have one dtype and shape

// Two collectives: the tangent's own, after the value's. Also for in-place collectives.
void apart(JvpCall& call) {
  call.run();
  call.set_tangent(0, waited(on_first(call.tangent(0).contiguous(), call)));
}

// By the collective of a list of tensors.
void as_two_of_a_list(JvpCall& call, const char* of_lists) {
  const at::Tensor x = call[0];
  const at::Tensor t = call.tangent(0);
  if (call.writes() || !have_one_dtype_and_shape(x, t)) {
    apart(call);
    return;
  }
  Args args{std::vector<at::Tensor>{x.contiguous(), t.contiguous()}};
  for (size_t i = 1; i < call.op().num_args; ++i) {
    args.push_back(call.arg(i));
  }
  const auto results = call_collective(of_lists, std::move(args)).toTensorVector();
  call.have_run({results[0]});
  call.set_tangent(0, waited(results[1])); // it may be copied, to get the strides of its value
}

// Stacked in one tensor, along a new dimension.
void as_one_tensor(JvpCall& call, int64_t dim) {
  const at::Tensor x = call[0];
  const at::Tensor t = call.tangent(0);
  if (call.writes() || !may_be_stacked(x, t)) {
    apart(call);
    return;
  }
  const at::Tensor both = waited(on_first(at::stack({x, t}, dim), call));
  call.have_run({both.select(dim, 0).contiguous()});
  call.set_tangent(0, both.select(dim, 1).contiguous());
}

void all_reduce(JvpCall& call) {
  linear_reduction("all_reduce", call.arg(1));
  as_two_of_a_list(call, "all_reduce_coalesced");
}

void reduce_scatter(JvpCall& call) {
  linear_reduction("reduce_scatter_tensor", call.arg(1));
  as_two_of_a_list(call, "reduce_scatter_tensor_coalesced");
}

void all_gather(JvpCall& call) {
  as_two_of_a_list(call, "all_gather_into_tensor_coalesced");
}

// Dimension 0 is split over the ranks.
void all_to_all(JvpCall& call) {
  as_one_tensor(call, 1);
}

void broadcast(JvpCall& call) {
  as_one_tensor(call, 0);
}

void reduced_list(JvpCall& call) {
  linear_reduction("a collective of a list", call.arg(1));
  with_tangents_in_list(call);
}

// Waiting communicates nothing, and must not copy a tensor that has not arrived yet.
void wait_for_each(JvpCall& call) {
  call.run();
  std::vector<at::Tensor> of_tangents;
  for (const at::Tensor& tangent : call.tangents(0)) {
    of_tangents.push_back(tangent.defined() ? waited(tangent) : at::Tensor());
  }
  call.set_tangents(0, of_tangents);
}

// ---- cotangents

at::Tensor as_mean(const at::Tensor& g, const IValue& reduction, int64_t group_size) {
  return linear_reduction("reduce_scatter_tensor", reduction) == "avg" ? g / group_size : g;
}

// The sum of all ranks' cotangents, at the source; the inputs of the other ranks were not used.
at::Tensor at_source(const at::Tensor& g, int64_t source, const IValue& group) {
  const at::Tensor sum = collective("all_reduce", g, {"sum", group});
  if (callbacks.rank_in_group(group) == source) {
    return sum;
  }
  // Zeros computed from the sum, so that differentiating again calls a collective on every rank.
  return sum.masked_fill(at::ones({}, sum.options().dtype(at::kBool)), 0);
}

// For a list: the members that have cotangents, in one collective.
void give_each(
    VjpCall& call,
    const char* name,
    at::ArrayRef<at::Tensor> cotangents,
    std::initializer_list<IValue> rest) {
  std::vector<at::Tensor> there;
  std::vector<size_t> members;
  for (size_t i = 0; i < cotangents.size(); ++i) {
    if (cotangents[i].defined()) {
      there.push_back(cotangents[i].contiguous());
      members.push_back(i);
    }
  }
  Args args{there};
  args.insert(args.end(), rest);
  const auto gradients = call_collective(name, std::move(args)).toTensorVector();
  for (size_t i = 0; i < members.size(); ++i) {
    call.give(0, waited(gradients[i]), members[i]);
  }
}

void all_reduce_each(VjpCall& call) {
  give_each(
      call,
      "all_reduce_coalesced",
      call.cotangents(),
      {linear_reduction("all_reduce_coalesced", call.arg(1)), call.arg(2)});
}

void scatter_each(VjpCall& call) {
  give_each(
      call,
      "reduce_scatter_tensor_coalesced",
      call.cotangents(),
      {"sum", call.arg(1), call.arg(2)});
}

void gather_each(VjpCall& call) {
  const bool is_mean = linear_reduction("reduce_scatter_tensor_coalesced", call.arg(1)) == "avg";
  std::vector<at::Tensor> cotangents = call.cotangents().vec();
  for (at::Tensor& g : cotangents) {
    g = is_mean && g.defined() ? g / call.integer(2) : g;
  }
  give_each(call, "all_gather_into_tensor_coalesced", cotangents, {call.arg(2), call.arg(3)});
}

void give_back_each(VjpCall& call) {
  for (size_t i = 0; i < call.cotangents().size(); ++i) {
    if (call.cotangents()[i].defined()) {
      call.give(0, call.cotangents()[i], i);
    }
  }
}

std::string named(const char* name) {
  return std::string(kCollectives) + name;
}

// Collectives that torch registers in two namespaces.
void add_split_and_joined(Table& rules, const std::string& space) {
  rules[space + "all_gather_into_tensor"]
      .jvp(all_gather)
      .vjp(VJP(0, collective("reduce_scatter_tensor", g, {"sum", c.arg(1), c.arg(2)})));
  rules[space + "reduce_scatter_tensor"]
      .jvp(reduce_scatter)
      .vjp(VJP(
          0,
          collective(
              "all_gather_into_tensor", as_mean(g, c.arg(1), c.integer(2)), {c.arg(2), c.arg(3)})));
  rules[space + "all_to_all_single"]
      .jvp(all_to_all)
      .vjp(VJP(0, collective("all_to_all_single", g, {c.arg(2), c.arg(1), c.arg(3)})));
}

} // namespace

void add_collectives(Table& rules) {
  add_split_and_joined(rules, kCollectives);
  add_split_and_joined(rules, kCollectivesOfAutograd);
  rules[named("all_reduce")]
      .jvp(all_reduce)
      .vjp(VJP(
          0, collective("all_reduce", g, {linear_reduction("all_reduce", c.arg(1)), c.arg(2)})));
  rules[named("broadcast")].jvp(broadcast).vjp(VJP(0, at_source(g, c.integer(1), c.arg(2))));
  rules[named("all_reduce_coalesced")].jvp(reduced_list).vjp(all_reduce_each, {.by = {"inputs"}});
  rules[named("all_gather_into_tensor_coalesced")]
      .jvp(with_tangents_in_list)
      .vjp(scatter_each, {.by = {"inputs"}});
  rules[named("reduce_scatter_tensor_coalesced")]
      .jvp(reduced_list)
      .vjp(gather_each, {.by = {"inputs"}});
  // Waiting, and the wrapper tensor that waits when it is first used.
  LINEAR(named("wait_tensor"), g);
  rules[named("wait_tensors")].jvp(wait_for_each).vjp(give_back_each, {.by = {"tensors"}});
  LINEAR(named("_wrap_tensor_autograd"), g);
}

} // namespace torchlayers
