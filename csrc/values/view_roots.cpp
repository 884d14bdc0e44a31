#include "values/view_roots.h"

#include <ATen/functorch/BatchedTensorImpl.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "core/stack.h"
#include "values/functional.h"
#include "values/history.h"
#include "values/tangent.h"
#include "values/wrapper.h"

namespace torchlayers {

using at::Tensor;

const ViewRoots::Note* ViewRoots::find(const Tensor& tensor) const {
  const auto found = std::ranges::find_if(notes_, [&](const Note& each) {
    return each.tensor._unsafe_get_target() == tensor.unsafeGetTensorImpl();
  });
  return found == notes_.end() ? nullptr : &*found;
}

void ViewRoots::note_view(const Tensor& view, const Tensor& of, bool is_detached) {
  const bool is_unrecorded = !is_detached && !at::GradMode::is_enabled();
  any_ = true;
  const Note* base = find(of);
  if (!is_detached && !is_unrecorded && base == nullptr) {
    return;
  }
  Note note{WeakTensor(view.getIntrusivePtr()), {}, is_detached, is_unrecorded};
  if (base != nullptr && !is_detached) {
    note.is_unrecorded = is_unrecorded || base->is_unrecorded;
    note.view_of = base->is_detached ? of : base->view_of;
  }
  make_place_in(notes_, [](const Note& each) { return each.tensor.expired(); });
  notes_.push_back(std::move(note));
}

Tensor ViewRoots::root_of(const Tensor& tensor) const {
  if (const Note* note = find(tensor); note != nullptr && note->view_of.defined()) {
    return note->view_of;
  }
  return tensor.is_view() ? Tensor(tensor._base()) : tensor;
}

bool ViewRoots::is_detached(const Tensor& root) const {
  const Note* note = find(root);
  return note != nullptr && note->is_detached;
}

bool ViewRoots::is_unrecorded(const Tensor& view) const {
  const Note* note = find(view);
  return note != nullptr && note->is_unrecorded;
}

bool has_history(const Tensor& tensor, bool at_all_levels) {
  if (const auto* batched = at::functorch::maybeGetBatchedImpl(tensor)) {
    return has_history(batched->value(), at_all_levels);
  }
  if (const auto* functional = at_all_levels ? functional_of(tensor) : nullptr) {
    return has_history(functional->value(), at_all_levels);
  }
  const auto* wrapper = wrapper_of(tensor);
  if (wrapper == nullptr) {
    return tensor.requires_grad() || tensor._fw_grad(kDualLevel).defined();
  }
  return tensor.requires_grad() || tangent_of(tensor, *wrapper->level()).defined() ||
         (at_all_levels && has_history(wrapper->value(), at_all_levels));
}

void give_history_of(const Tensor& other, const Tensor& numbers) {
  if (const auto* batched = at::functorch::maybeGetBatchedImpl(other)) {
    const auto* to = at::functorch::maybeGetBatchedImpl(numbers);
    TORCH_INTERNAL_ASSERT(to != nullptr && to->bdim() == batched->bdim());
    give_history_of(batched->value(), to->value());
    return;
  }
  if (const auto* wrapper = wrapper_of(other)) {
    if (Tensor tangent = tangent_of(other, *wrapper->level()); tangent.defined()) {
      give_tangent(numbers, std::move(tangent));
    }
  } else if (const Tensor& tangent = other._fw_grad(kDualLevel); tangent.defined()) {
    numbers._set_fw_grad(tangent, kDualLevel, /*is_inplace_op=*/false);
  }
  if (other.requires_grad()) {
    torch::autograd::impl::set_gradient_edge(numbers, torch::autograd::impl::gradient_edge(other));
  }
}

void take_history_of(const Tensor& root, const Tensor& elements, bool at_all_levels) {
  const Tensor spread = root.expand_symint(elements.sym_sizes());
  if (!has_history(spread, at_all_levels)) {
    return;
  }
  Tensor numbers = elements.clone();
  if (at_all_levels) {
    numbers = History(spread, /*kept_at=*/-1, /*keeps_tangents=*/true).given_to(numbers, mirror());
  } else {
    give_history_of(spread, numbers);
  }
  elements.copy_(numbers);
}

} // namespace torchlayers
