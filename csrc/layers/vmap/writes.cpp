#include "layers/vmap/writes.h"

#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>
#include <bitset>
#include <optional>

#include "core/args.h"
#include "core/below.h"
#include "core/stack.h"
#include "core/trace/trace.h"
#include "layers/vmap/errors.h"
#include "values/copy.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

bool is_out(const Operator& op, size_t i) {
  return op.schema().arguments()[i].is_out();
}

bool writes_out(const Operator& op) {
  return !op.written_args.empty() && is_out(op, op.written_args[0]);
}

// t_, resize_ and the like; detach_ has the tag too.
bool changes_shape(const Operator& op) {
  return op.handle.hasTag(at::Tag::inplace_view) && !op.detaches_in_place;
}

bool writes_draws(const Operator& op) {
  return op.is_random && !op.written_args.empty();
}

std::bitset<64> levels_of_torch_func() {
  std::bitset<64> levels;
  const auto layers = layers_on_stack();
  for (size_t i = 0; i < layers.size(); ++i) {
    levels[(i + 1) % 64] = layers[i] == nullptr;
  }
  return levels;
}

// The operator that takes the same arguments, without those that this one writes its results to.
std::optional<c10::OperatorHandle> without_out(const Operator& op) {
  const auto& args = op.schema().arguments();
  const size_t count = op.num_args - op.written_args.size();
  const auto name = c10::Symbol::fromQualString(op.schema().name());
  for (const auto& each : torch::jit::getAllOperatorsFor(name)) {
    const auto& others = each->schema().arguments();
    const auto is_same = [](const c10::Argument& one, const c10::Argument& other) {
      return one.name() == other.name() && *one.type() == *other.type();
    };
    if (!each->schema().is_mutable() &&
        std::equal(args.begin(), args.begin() + count, others.begin(), others.end(), is_same)) {
      return c10::Dispatcher::singleton().findSchema(each->schema().operator_name());
    }
  }
  return std::nullopt;
}

// Whether the operator reads the layout of its arguments and no values. A tensor's views have the
// strides of its own memory, and so do their tangents; what stands in for it may have others.
bool reads_layout(const Operator& op) {
  const auto& name = op.schema().name();
  return name == "aten::_new_zeros_with_same_feature_meta" ||
         name == "aten::_has_same_storage_numel";
}

// Whether it returns memory that torch.tensor has made; not memory borrowed by from_numpy.
bool makes_memory_its_own(const Operator& op, const Args& args) {
  const c10::StorageImpl* memory =
      op.lifts ? memory_of(peek(args, 0, op.num_args).toTensor()) : nullptr;
  return memory != nullptr && memory->resizable();
}

} // namespace

Writes::Writes(const Operator& op, Args& args, VmapLayer& layer)
    : layer_(layer), local_storages_(*layer.local_storages()) {
  if (changes_shape(op) || reads_layout(op)) {
    return; // of the original tensor
  }
  if (op.is_in_place) {
    target_ = peek(args, 0, op.num_args).toTensor();
  }
  if (local_storages_.any_written()) {
    stand_in(op, args);
  }
  if (!op.written_args.empty()) {
    make_room(op, args);
    keep_tangents_apart(op, args);
  }
}

void Writes::stand_in(const Operator& op, Args& args) {
  change_tensors(args, op.num_args, [&](const at::Tensor& tensor, size_t) {
    at::Tensor shown = local_storages_.shown(tensor);
    if (!shown.defined()) {
      return tensor;
    }
    stand_ins_.emplace_back(shown, tensor);
    return shown;
  });
}

void Writes::make_room(const Operator& op, Args& args) {
  std::vector<at::Tensor> targets; // that have no room yet
  for (const size_t i : op.written_args) {
    visit_tensors_of(peek(args, i, op.num_args), [&](const at::Tensor& tensor) {
      const at::Tensor target = without_dead_wrappers(tensor);
      if (!layer_.follows(target)) {
        targets.push_back(target);
      }
    });
  }
  if (targets.empty() || !needs_room(op, args)) {
    return;
  }
  bool any = false;
  for (const at::Tensor& target : targets) {
    if (local_storages_.has_made(target)) {
      local_storages_.make_room(target);
      any = true;
    } else if (op.is_in_place && !op.is_custom && any_batched(op, args)) {
      check_not_escaped(target, layer_);
      refuse_to_write(op, target, layer_);
    }
  }
  if (any) {
    stand_in(op, args);
  }
}

// torch's forward AD takes the tangent of what copy_ broadcasts for the target's own: a later write
// to the target would change both. A batch of one sample is broadcast without a copy.
void Writes::keep_tangents_apart(const Operator& op, Args& args) const {
  if (levels_of_torch_func().none() || op.schema().name() != "aten::copy_" ||
      *layer_.batch_size() != 1) {
    return;
  }
  at::Tensor source = peek(args, 1, op.num_args).toTensor();
  if (!layer_.follows(source)) {
    const Below below(layer_, op);
    peek(args, 1, op.num_args) = source.clone();
  }
}

bool Writes::any_batched(const Operator& op, const Args& args) const {
  return any_tensor(
      args, op.num_args, [&](const at::Tensor& tensor) { return layer_.follows(tensor); });
}

bool Writes::needs_room(const Operator& op, const Args& args) const {
  if (layer_.draws_for_each() && writes_draws(op)) {
    return true;
  }
  // A vmap of torch.func's below can't make room: this layer makes it for both.
  const auto of_torch_func = levels_of_torch_func();
  return any_batched(op, args) || any_tensor(args, op.num_args, [&](const at::Tensor& tensor) {
           return (batched_levels(tensor) & of_torch_func).any();
         });
}

void Writes::give_back(const Operator& op, Args& results) const {
  if (stand_ins_.empty()) {
    return;
  }
  if (target_.defined()) { // a batching rule may return another tensor with the same data
    if (!target_.is_inference()) {
      target_.unsafeGetTensorImpl()->bump_version(); // the stand-in's is another tensor's
    }
    peek(results, 0, op.num_returns) = target_;
    return;
  }
  change_tensors(results, op.num_returns, [&](const at::Tensor& result, size_t) {
    for (const auto& [shown, given] : stand_ins_) {
      if (result.is_same(shown)) {
        return given;
      }
    }
    return result;
  });
}

bool write_out(const Operator& op, Args& args, VmapLayer& layer) {
  if (!writes_out(op)) {
    return false;
  }
  unwrap_dead_and_check(op, args, layer);
  const bool is_batched = any_tensor(args, op.num_args, [&](const at::Tensor& tensor) {
    return layer.follows(tensor) || layer.local_storages()->has_written(tensor);
  });
  const auto functional = is_batched ? without_out(op) : std::nullopt;
  if (!functional) {
    return false;
  }
  trace("rule", op, layer);
  const auto given = last(args, op.num_args);
  for (const size_t i : op.written_args) {
    const at::Tensor& out = given[i].toTensor();
    if (!layer.follows(out) && !layer.local_storages()->has_made(out)) {
      refuse_to_write(op, out, layer);
    }
  }
  const size_t count = op.num_args - op.written_args.size();
  Args results = given.slice(0, count).vec();
  functional->callBoxed(&results);
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < op.written_args.size(); ++i) {
    const at::Tensor out = given[op.written_args[i]].toTensor();
    const at::Tensor& result = results[i].toTensor();
    check_can_copy(out, result);
    if (out.sym_sizes() != result.sym_sizes()) {
      out.resize__symint(result.sym_sizes());
    }
    out.copy_(result);
    outs.push_back(out);
  }
  drop(args, op.num_args);
  args.insert(args.end(), outs.begin(), outs.end());
  return true;
}

NotedResults::NotedResults(const Operator& op, const Args& args, VmapLayer& layer)
    : op_(op), layer_(layer) {
  if (op.num_args == 0 || op.is_in_place || makes_memory_its_own(op, args)) {
    return;
  }
  visit_tensors(args, op.num_args, [&](const at::Tensor& tensor) {
    const auto memories = LocalStorages::memories_of(tensor, layer.level());
    given_.append(memories.begin(), memories.end());
  });
  const c10::IValue& first = peek(args, 0, op.num_args);
  if (op.aliases && first.isTensor() && !layer.follows(first.toTensor())) {
    viewed_ = first.toTensor();
  }
}

void NotedResults::note(const Args& results) const {
  if (op_.is_in_place) {
    return;
  }
  LocalStorages& storages = *layer_.local_storages();
  visit_tensors(results, op_.num_returns, [&](const at::Tensor& result) {
    if (layer_.follows(result)) {
      return;
    }
    if (viewed_.defined() && (op_.detaches || !result.is_same(viewed_))) {
      storages.note_view(result, viewed_, op_.detaches);
    }
    storages.note(result, given_);
  });
}

} // namespace torchlayers
