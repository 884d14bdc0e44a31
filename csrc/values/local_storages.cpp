#include "values/local_storages.h"

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/functorch/BatchedTensorImpl.h>

#include <algorithm>
#include <optional>

#include "core/aten_functions.h"
#include "core/below.h"
#include "core/callbacks.h"
#include "core/device.h"
#include "core/errors.h"
#include "core/skip_autograd.h"
#include "values/batched.h"
#include "values/copy.h"
#include "values/history.h"
#include "values/wrapper.h"
#include "values/wrapper_chain.h"

namespace torchlayers {
namespace {

using at::Tensor;

// Records whatever the modes, so that a tensor has the history of the tensor that it represents.
class Recorded {
 public:
  explicit Recorded(bool grad) {
    (Modes{grad, grad && before_.forward_grad}).set();
  }
  ~Recorded() {
    before_.set();
  }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;

 private:
  const Modes before_ = Modes::of_thread();
};

// Makes any access to the memory that a tensor had before it was written to an error.
void close_memory(const Tensor& tensor, const Layer& layer) {
  const Tensor& holder = holder_of(tensor);
  const bool is_in_memory = has_numbers(holder) && !holder.key_set().has(DispatchKey::Python) &&
                            !holder.key_set().has(DispatchKey::Functionalize);
  if (is_in_memory) {
    memory_of(tensor)->release_data_and_set_meta_custom_data_ptr_error_msg_(
        "torchlayers: a value per sample was written to a tensor made inside " + layer.name() +
        ", so the tensor is batched and has no memory that can be read. Either it has escaped from "
        "the function being vmapped, or its data was read there (.numpy(), .tolist(), "
        ".data_ptr()). Return it from the function, and read it after vmap.");
  }
}

// The elements at the place, viewed in the way that this tensor views its own.
Tensor seen_as(const Tensor& tensor, const Tensor& elements, const StridedRegion& place) {
  Tensor view = at_places(as_dtype(elements, tensor.scalar_type()), place);
  view = tensor.is_conj() ? view.conj() : view;
  return tensor.is_neg() ? at::_neg_view(view) : view;
}

} // namespace

void LocalStorages::note(const Tensor& result, const Memories& given) {
  c10::StorageImpl* memory = memory_of(result);
  if (memory == nullptr || std::ranges::find(given, memory) != given.end() || !has_places(result)) {
    return;
  }
  const bool is_all_of_memory = batched_levels(result).none();
  const Extent extent = is_all_of_memory ? Extent() : extent_of(result);
  add_made(
      {WeakStorage::reclaim_copy(memory),
       WeakTensor::reclaim_copy(result.unsafeGetTensorImpl()),
       extent});
}

void LocalStorages::add_made(Made made) {
  const std::lock_guard lock(mutex_);
  make_place_in(made_, [](const Made& each) { return each.memory.expired(); });
  made_.push_back(std::move(made));
}

void LocalStorages::note_view(const Tensor& view, const Tensor& of, bool is_detached) {
  if (roots_.are_to_know_of(is_detached)) {
    const std::lock_guard lock(mutex_);
    roots_.note_view(view, of, is_detached);
  }
}

const LocalStorages::Moved* LocalStorages::moved_from(const c10::StorageImpl* memory) const {
  const std::lock_guard lock(mutex_);
  const auto found = moved_.find(memory);
  return found == moved_.end() ? nullptr : &found->second;
}

const LocalStorages::Made* LocalStorages::made_of(const c10::StorageImpl* memory) const {
  // Memory that is written to was usually made recently.
  const auto found = std::find_if(made_.rbegin(), made_.rend(), [&](const Made& each) {
    return each.memory._unsafe_get_target() == memory;
  });
  return found == made_.rend() ? nullptr : &*found;
}

StridedRegion LocalStorages::after(const Moved& moved, const StridedRegion& place) {
  return place_in(moved.extent, memory_of(moved.to), place);
}

template <class Visit>
StridedRegion LocalStorages::trail(StridedRegion place, int64_t level, const Visit& visit) {
  bool goes_on = visit(place);
  while (goes_on && --level > 0) {
    const Layer* lower = layer_at(level);
    const LocalStorages* storages = lower != nullptr ? lower->local_storages() : nullptr;
    if (storages == nullptr || !storages->any_written()) {
      continue;
    }
    if (const Moved* moved = storages->moved_from(place.memory)) {
      place = after(*moved, place);
      goes_on = visit(place);
    }
  }
  return place;
}

std::pair<LocalStorages::Moved*, StridedRegion> LocalStorages::find(const Tensor& tensor) {
  Moved* found = nullptr;
  if (memory_of(tensor) == nullptr || !has_places(tensor)) {
    return {nullptr, {}};
  }
  StridedRegion place = trail(place_of(tensor), layer_.level(), [&](const StridedRegion& at) {
    found = const_cast<Moved*>(moved_from(at.memory));
    return found == nullptr;
  });
  return {found, std::move(place)};
}

LocalStorages::Memories LocalStorages::memories_of(const Tensor& tensor, int64_t level) {
  Memories memories;
  if (c10::StorageImpl* memory = memory_of(tensor)) {
    trail({memory, 0, {}, {}}, level, [&](const StridedRegion& at) {
      memories.push_back(at.memory);
      return true;
    });
  }
  return memories;
}

bool LocalStorages::has_made(const Tensor& tensor) const {
  const std::lock_guard lock(mutex_);
  return has_places(tensor) && std::ranges::any_of(
                                   memories_of(tensor, layer_.level()),
                                   [&](const auto* memory) { return made_of(memory) != nullptr; });
}

const Tensor& LocalStorages::elements_of(const Tensor& root, Moved& moved) {
  const bool is_detached = roots_.is_detached(root);
  // Autograd knows no base of these, and their `.data` is an operator.
  const bool has_no_base = at::functorch::maybeGetBatchedImpl(root) != nullptr ||
                           at::functionalization::impl::isFunctionalTensor(root);
  const bool may_be_data = !has_no_base && !root.is_inference() &&
                           moved.root._unsafe_get_target() != root.unsafeGetTensorImpl();
  if (!is_detached && !may_be_data) {
    return moved.to;
  }
  std::erase_if(moved.others, [](const Line& each) { return each.root.expired(); });
  for (const Line& line : moved.others) {
    if (line.root._unsafe_get_target() == root.unsafeGetTensorImpl()) {
      return line.to;
    }
  }
  Tensor to = is_detached ? moved.to.detach() : moved.to.variable_data();
  const Tensor alive = without_dead_wrappers(root);
  take_history_of(alive, seen_as(alive, to, after(moved, find(alive).second)), is_detached);
  moved.others.push_back({WeakTensor(root.getIntrusivePtr()), std::move(to)});
  return moved.others.back().to;
}

Tensor LocalStorages::find_shown(const Tensor& tensor) {
  const auto* batched_here = at::functorch::maybeGetBatchedImpl(tensor);
  if (batched_here != nullptr && batched_here->level() == layer_.level()) {
    return {};
  }
  const std::lock_guard lock(mutex_);
  const auto known = shown_.find(tensor.unsafeGetTensorImpl());
  if (known != shown_.end() && is_at(tensor, known->second.place)) {
    return known->second.stands_for;
  }
  auto [moved, place] = find(tensor);
  if (moved == nullptr) {
    return {};
  }
  place = after(*moved, place);
  const Tensor root = roots_.root_of(tensor);
  Tensor view;
  {
    const Below below(layer_, Modes::of_thread());
    std::optional<Recorded> recorded(std::in_place, /*grad=*/true);
    const Tensor& elements = elements_of(root, *moved);
    recorded.emplace(/*grad=*/!roots_.is_unrecorded(tensor));
    view = seen_as(tensor, elements, place);
  }
  Tensor stands_for = batched(std::move(view), /*dim=*/0, layer_);
  shown_.insert_or_assign(
      tensor.unsafeGetTensorImpl(),
      Shown{WeakTensor::reclaim_copy(tensor.unsafeGetTensorImpl()), place_of(tensor), stands_for});
  return stands_for;
}

// A tensor as large as the batch, and batched by all of torch.func's vmaps below, which can't make
// room later. Called below the layer.
Tensor LocalStorages::room(int64_t count, const Tensor& like) const {
  const std::vector<c10::SymInt> sizes{*layer_.batch_size(), count};
  const Tensor number = batched_by_torch_func();
  return number.defined() ? number.new_empty_symint(sizes, like.options())
                          : at::empty_symint(sizes, like.options());
}

void LocalStorages::make_room(const Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  std::erase_if(moved_, [](const auto& each) { return each.second.from.expired(); });
  std::erase_if(shown_, [](const auto& each) { return each.second.alias.expired(); });
  Tensor whole;
  const Made* made = nullptr;
  const StridedRegion own = place_of(tensor);
  const StridedRegion last = trail(own, layer_.level(), [&](const StridedRegion& at) {
    made = made_of(at.memory);
    if (made != nullptr && !whole.defined()) {
      if (auto alive = made->whole.lock()) {
        whole = Tensor(std::move(alive));
      }
    }
    return true;
  });
  TORCH_INTERNAL_ASSERT(made != nullptr);
  const auto extent_in = [&](const c10::StorageImpl* memory) {
    Extent extent = made_of(memory)->extent;
    if (extent.count == 0) {
      extent.count = static_cast<int64_t>(memory->nbytes() / tensor.itemsize());
    }
    return extent;
  };
  const Tensor root = roots_.root_of(whole.defined() ? whole : tensor);
  Moved moved{made->memory, extent_in(last.memory), {}, WeakTensor(root.getIntrusivePtr()), {}};
  {
    const Below below(layer_, Modes::of_thread());
    const Recorded recorded(/*grad=*/true);
    if (!whole.defined() || whole.scalar_type() != tensor.scalar_type() || whole.is_conj() ||
        whole.is_neg()) {
      // The whole extent of the memory, from the tensor by which autograd knows it.
      const Extent all = extent_in(own.memory);
      whole = stretched(
          root.scalar_type() == tensor.scalar_type() ? root : tensor,
          {all.count},
          {all.unit},
          all.origin);
    }
    const StridedRegion from =
        trail(place_of(whole), layer_.level(), [](const StridedRegion&) { return true; });
    moved.to = room(moved.extent.count, tensor);
    const Tensor old = at_places(moved.to, after(moved, from));
    if (!nothing_is_below() || !copy_at_once(old, all_of(old), whole)) {
      old.copy_(whole);
    }
  }
  bump_versions(whole);
  bump_versions(tensor);
  close_memory(tensor, layer_);
  const Memories memories = memories_of(tensor, layer_.level());
  const Extent extent{0, 1, moved.extent.count};
  const Tensor to = moved.to;
  moved_.insert_or_assign(last.memory, std::move(moved));
  any_written_ = true;
  // Tell the layers above whose operator this layer is running.
  Processing::visit_all([&](const Layer& above) {
    if (LocalStorages* storages = above.local_storages(); storages != nullptr && storages != this) {
      storages->follow(memories, to, extent);
    }
  });
}

void LocalStorages::follow(const Memories& from, const Tensor& to, const Extent& extent) {
  const std::lock_guard lock(mutex_);
  for (const auto* memory : from) {
    if (const Made* made = made_of(memory)) {
      add_made({WeakStorage::reclaim_copy(memory_of(to)), made->whole, extent});
      return;
    }
  }
}

bool share_memory(const Tensor& one, const Tensor& other, const Layer& layer) {
  const auto of_other = LocalStorages::memories_of(other, layer.level());
  return std::ranges::any_of(
      LocalStorages::memories_of(one, layer.level()),
      [&](const auto* memory) { return std::ranges::find(of_other, memory) != of_other.end(); });
}

void LocalStorages::end() {
  const std::lock_guard lock(mutex_);
  made_.clear();
  shown_.clear();
  roots_.clear();
  std::erase_if(moved_, [](const auto& each) { return each.second.from.expired(); });
  for (auto& [memory, moved] : moved_) {
    cut_graphs(moved.to);
    std::erase_if(moved.others, [](const Line& each) { return each.root.expired(); });
    for (Line& line : moved.others) {
      cut_graphs(line.to);
    }
  }
  any_written_ = !moved_.empty();
}

// A lower vmap may have moved the new memory too, and knows it by the tensor.
void LocalStorages::cut_graphs(Tensor& to) const {
  const Tensor before = std::exchange(to, with_graphs_cut(to));
  for (int64_t level = layer_.level() - 1; level > 0; --level) {
    const Layer* lower = layer_at(level);
    LocalStorages* storages = lower != nullptr ? lower->local_storages() : nullptr;
    if (storages != nullptr && storages->any_written()) {
      storages->replace_root(value_at(before, level), value_at(to, level));
    }
  }
}

void LocalStorages::replace_root(const Tensor& before, const Tensor& root) {
  const std::lock_guard lock(mutex_);
  const auto replace = [&](WeakTensor& known) {
    if (known._unsafe_get_target() == before.unsafeGetTensorImpl()) {
      known = WeakTensor(root.getIntrusivePtr());
    }
  };
  for (auto& [memory, moved] : moved_) {
    replace(moved.root);
    for (Line& line : moved.others) {
      replace(line.root);
    }
  }
}

} // namespace torchlayers
