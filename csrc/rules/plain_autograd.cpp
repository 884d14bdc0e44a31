#include "rules/plain_autograd.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/args.h"
#include "core/aten_functions.h"
#include "core/skip_autograd.h"
#include "rules/lookup.h"
#include "values/strided_region.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using at::Tensor;

// Whether autograd or torch.func's derivatives record the operator. Its vmap writes to no tensor
// that was made inside.
bool is_recorded(const Args& args, size_t count) {
  return !is_any_mode_on() &&
         any_tensor(args, count, [](const Tensor& each) { return !is_plain(each); }) &&
         !any_tensor(args, count, [](const Tensor& each) { return batched_levels(each).any(); });
}

// The same for operators on memory.
bool is_strided_and_recorded(const Args& args, size_t count) {
  return is_recorded(args, count) &&
         !any_tensor(args, count, [](const Tensor& each) { return !is_strided(each); });
}

bool shows_memory_twice(const Tensor& x) {
  return at::has_internal_overlap(x) == at::MemOverlap::Yes;
}

// A copy of all of x's memory; only the part that x shows has a history.
Tensor with_own_memory(const Tensor& x) {
  if (shows_memory_twice(x)) {
    return x.clone();
  }
  const auto elements = static_cast<int64_t>(memory_of(x)->nbytes() / x.itemsize());
  const Tensor memory = x.detach().as_strided({elements}, {1}, 0).clone();
  return memory.as_strided(x.sizes(), x.strides(), x.storage_offset()).copy_(x);
}

bool copy(const Operator& op, Args& args) {
  Tensor made = copied(
      peek(args, 0, op.num_args).toTensor(),
      peek(args, 1, op.num_args).toTensor(),
      peek(args, 2, op.num_args).toBool());
  drop(args, op.num_args);
  args.emplace_back(std::move(made));
  return true;
}

// The operator that makes the view that this one writes to, or copies: slice, for slice_scatter and
// slice_copy.
c10::OperatorHandle view_of(const Operator& op) {
  auto name = op.handle.operator_name();
  name.name.erase(name.name.rfind('_'));
  if (name.name == "aten::slice" && name.overload_name.empty()) {
    name.overload_name = "Tensor";
  } else if (name.name == "aten::select" && name.overload_name.empty()) {
    name.overload_name = "int";
  }
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      name.name.c_str(), name.overload_name.c_str());
}

// x_scatter(x, part, ...) of complex tensors by that of their real views, for captured graphs,
// which show the operators of memory.
bool scatter_real_views(const Operator& op, Args& args) {
  const std::string name = op.handle.operator_name().name;
  const Tensor x = peek(args, 0, op.num_args).toTensor();
  const Tensor part = peek(args, 1, op.num_args).toTensor();
  const bool is_diagonal = name == "aten::diagonal_scatter";
  if (!x.is_complex() || name == "aten::as_strided_scatter") {
    return false;
  }
  Args real = last(args, op.num_args).vec();
  real[0] = at::view_as_real(x.resolve_conj());
  real[1] = at::view_as_real(part.to(x.scalar_type()).resolve_conj());
  for (const size_t dim : is_diagonal ? std::vector<size_t>{3, 4} : std::vector<size_t>{2}) {
    real[dim] = at::maybe_wrap_dim(real[dim].toInt(), x.dim());
  }
  if (is_diagonal) {
    real[1] = real[1].toTensor().transpose(-1, -2);
  }
  op.handle.callBoxed(&real);
  drop(args, op.num_args);
  args.emplace_back(at::view_as_complex(real[0].toTensor()));
  return true;
}

// x_scatter(x, part, ...). torch's derivatives of the others are right for real numbers.
bool scatter(const Operator& op, Args& args) {
  const Tensor x = peek(args, 0, op.num_args).toTensor();
  const Tensor part = peek(args, 1, op.num_args).toTensor();
  const bool is_right_in_torch = !x.is_complex() && !part.is_complex() &&
                                 op.handle.operator_name().name != "aten::as_strided_scatter";
  if (!is_right_in_torch && is_any_mode_on() && is_strided(x) && is_strided(part) &&
      (x.requires_grad() || part.requires_grad()) && at::GradMode::is_enabled()) {
    return scatter_real_views(op, args);
  }
  if (is_right_in_torch || !is_strided_and_recorded(args, op.num_args)) {
    return false;
  }
  const Tensor made = with_own_memory(x);
  Args place = last(args, op.num_args).slice(2).vec();
  place.insert(place.begin(), made);
  view_of(op).callBoxed(&place);
  place[0].toTensor().copy_(part);
  drop(args, op.num_args);
  args.emplace_back(made);
  return true;
}

// x_copy(x, ...), of which torch has no derivative for complex numbers.
bool copy_view(const Operator& op, Args& args) {
  if (!is_strided_and_recorded(args, op.num_args)) {
    return false;
  }
  view_of(op).callBoxed(&args);
  change_tensors(args, op.num_returns, [](const Tensor& view, size_t) {
    return view.clone(at::MemoryFormat::Contiguous);
  });
  return true;
}

// The result does not depend on the values of the tensors.
bool constant(const Operator& op, Args& args) {
  if (!is_recorded(args, op.num_args)) {
    return false;
  }
  change_tensors(args, op.num_args, [](const Tensor& tensor, size_t) { return tensor.detach(); });
  op.handle.callBoxed(&args);
  return true;
}

bool copy_each(const Operator& op, Args& args) {
  std::vector<Tensor> results = peek(args, 0, op.num_args).toTensorVector();
  const std::vector<Tensor> sources = peek(args, 1, op.num_args).toTensorVector();
  if (results.size() != sources.size()) {
    return false;
  }
  for (size_t i = 0; i < results.size(); ++i) {
    results[i] = copied(results[i], sources[i]);
  }
  drop(args, op.num_args);
  args.emplace_back(std::move(results));
  return true;
}

} // namespace

Tensor copied(const Tensor& x, const Tensor& source, bool non_blocking) {
  if (!is_strided_and_recorded({x, source}, 2)) {
    return at::copy(x, source, non_blocking);
  }
  const Tensor made = shows_memory_twice(x)
                          ? at::empty_like(x)
                          : at::empty_strided(x.sizes(), x.strides(), x.options());
  return made.copy_(source, non_blocking);
}

PlainForm find_plain_form(const c10::OperatorName& name) {
  static const std::unordered_map<std::string, PlainForm> forms{
      {"aten::copy", &copy},
      {"aten::as_strided_scatter", &scatter},
      {"aten::diagonal_scatter", &scatter},
      {"aten::select_scatter", &scatter},
      {"aten::slice_scatter", &scatter},
      {"aten::normal_functional", &constant},
      {"aten::bernoulli.p", &constant},
      {"aten::detach_copy", &constant},
      {"aten::_foreach_zero", &constant},
      {"aten::_foreach_copy", &copy_each}};
  const auto found = forms.find(c10::toString(name));
  if (found != forms.end()) {
    return found->second;
  }
  return view_copied_by(name) ? &copy_view : nullptr;
}

} // namespace torchlayers
