#include "values/tangent.h"

#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <mutex>
#include <optional>
#include <typeinfo>
#include <utility>
#include <vector>

#include "core/aten_functions.h"
#include "core/saved_stack.h"
#include "core/skip_autograd.h"
#include "core/stack.h"
#include "values/view_roots.h"
#include "values/without_strides.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using at::functorch::TensorWrapper;
using torch::autograd::AutogradMeta;
using torch::autograd::CreationMeta;
using torch::autograd::DifferentiableViewMeta;
using torch::autograd::ForwardADLevel;
using torch::autograd::ForwardGrad;
using torch::autograd::ViewInfo;
namespace impl = torch::autograd::impl;

// Puts a tangent where torch's forward AD looks for it, if the primal's layer is on the stack.
bool hand_over(const AutogradMeta& meta, const at::TensorBase& primal, const at::Tensor& tangent) {
  const auto& wrapper = static_cast<const TensorWrapper&>(*primal.unsafeGetTensorImpl());
  const auto level = wrapper.level();
  if (!level || !is_of_this_stack(wrapper, *level)) {
    return false;
  }
  const auto& layer = mirror()[static_cast<size_t>(*level - 1)].interpreter();
  meta.fw_grad_ = std::make_shared<ForwardGrad>();
  meta.fw_grad_->set_value(wrapper_around(tangent, layer), kDualLevel);
  return true;
}

// The tangent in torch's table. Under saved-tensor hooks it is struck off the list of those that
// are forgotten with the dual level. A tangent with a graph of this level may hold its own primal,
// and only the end of the dual level frees the two.
const at::Tensor& torchs_tangent(const AutogradMeta& meta, const at::Tensor& wrapper) {
  const at::Tensor& tangent = meta.fw_grad(kDualLevel, wrapper);
  if (any_saved_hooks() && tangent.defined() && !tangent.requires_grad()) {
    std::lock_guard<std::mutex> lock(meta.mutex_);
    if (const auto level = ForwardADLevel::try_get_by_idx(kDualLevel)) {
      level->erase(meta.fw_grad_);
    }
  }
  return tangent;
}

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// Autograd's metadata of a tensor, together with the tangent that a rule gave it.
// NOTE [Tangents of rules].
template <class Meta>
struct WithTangent final : Meta {
  using Meta::Meta;

  const at::Tensor& fw_grad(uint64_t level, const at::TensorBase& self) const override {
    hand_out(self);
    return Meta::fw_grad(level, self);
  }
  void set_fw_grad(
      const at::TensorBase& tangent,
      const at::TensorBase& self,
      uint64_t level,
      bool is_inplace_op) override {
    if (is_detached()) {
      this->tangent.reset();
      was_handed_out = false;
    }
    hand_out(self);
    Meta::set_fw_grad(tangent, self, level, is_inplace_op);
  }

  void hand_out(const at::TensorBase& self) const {
    std::lock_guard<std::mutex> lock(this->mutex_);
    const bool is_torchs_too = this->fw_grad_ != nullptr && !this->fw_grad_->empty();
    if (tangent.defined() && !is_torchs_too && !is_detached()) {
      was_handed_out = hand_over(*this, self, tangent) || was_handed_out;
    }
  }

  // The end of a dual level empties torch's table of tangents; detach_ removes it.
  bool is_detached() const {
    return was_handed_out && this->fw_grad_ == nullptr;
  }

  void replace(at::Tensor other) {
    tangent = std::move(other);
    this->fw_grad_.reset();
    was_handed_out = false;
  }

  at::Tensor tangent;
  // For an argument whose tangent is the caller's: its views.
  std::unique_ptr<std::vector<WeakTensor>> views_of_borrowed;
  mutable bool was_handed_out = false;
};

using TensorMeta = WithTangent<AutogradMeta>;
using ViewMeta = WithTangent<DifferentiableViewMeta>;

const at::TensorBase& root_of(const at::Tensor& wrapper) {
  const auto* view = impl::get_view_autograd_meta(wrapper);
  return view != nullptr && view->has_bw_view() ? view->get_backward_view().base_ : wrapper;
}

// The metadata of an argument, given it or its base, if its tangent is the caller's; else null.
TensorMeta* borrowing(const at::TensorBase& root) {
  auto* meta = impl::get_autograd_meta(root);
  if (meta == nullptr || typeid(*meta) != typeid(TensorMeta)) {
    return nullptr;
  }
  auto* known = static_cast<TensorMeta*>(meta);
  return known->views_of_borrowed != nullptr ? known : nullptr;
}

// The same memory, seen with the conjugate and the negative bit of another tensor.
at::Tensor with_bits(const at::Tensor& tensor, bool is_conj, bool is_neg) {
  const at::Tensor conjugated = tensor.is_conj() == is_conj ? tensor : at::_conj(tensor);
  return conjugated.is_neg() == is_neg ? conjugated : at::_neg_view(conjugated);
}

// The part of a copy that corresponds to `view`, a view of the copied tensor.
at::Tensor part_like(const at::Tensor& view, const at::Tensor& copy, const at::Tensor& of) {
  at::Tensor base = with_bits(copy, /*is_conj=*/false, /*is_neg=*/false);
  if (copy.is_complex() && !view.is_complex()) {
    base = at::view_as_real(base);
  } else if (!copy.is_complex() && view.is_complex()) {
    base = at::view_as_complex(base);
  }
  const c10::SymInt start = of.sym_storage_offset() * of.itemsize() / view.itemsize();
  const at::Tensor part = base.as_strided_symint(
      view.sym_sizes(),
      view.sym_strides(),
      view.sym_storage_offset() - start + base.sym_storage_offset());
  return with_bits(part, view.is_conj(), view.is_neg());
}

void replace_tangent(const at::Tensor& wrapper, const at::Tensor& tangent) {
  auto* meta = impl::get_autograd_meta(wrapper);
  if (typeid(*meta) == typeid(ViewMeta)) {
    static_cast<ViewMeta*>(meta)->replace(tangent);
  } else {
    hand_over(*meta, wrapper, tangent);
  }
}

template <class Meta>
const at::Tensor* held_by(const AutogradMeta& meta) {
  if (typeid(meta) != typeid(Meta)) {
    return nullptr;
  }
  const auto& held = static_cast<const Meta&>(meta);
  return held.is_detached() ? nullptr : &held.tangent;
}

} // namespace

at::Tensor tangent_of(const at::Tensor& wrapper, int64_t level) {
  const auto* meta = impl::get_autograd_meta(wrapper);
  if (meta == nullptr) {
    return {};
  }
  const at::Tensor* held = held_by<TensorMeta>(*meta);
  if (held == nullptr) {
    held = held_by<ViewMeta>(*meta);
  }
  if (held != nullptr && held->defined()) {
    return *held;
  }
  // torch may make a view's tangent only now, by operators that layers above must not see.
  const bool is_asked_above = static_cast<int64_t>(mirror().size()) > level;
  std::optional<BelowLevel> at_level;
  if (is_asked_above && impl::get_view_autograd_meta(wrapper) != nullptr) {
    at_level.emplace(level + 1);
  }
  const at::Tensor& given = torchs_tangent(*meta, wrapper);
  return given.defined() ? unwrap(given, level) : given;
}

void keep_tangent_for_hooks(const at::Tensor& wrapper) {
  if (const auto* meta = impl::get_autograd_meta(wrapper)) {
    torchs_tangent(*meta, wrapper);
  }
}

void give_tangent(const at::Tensor& wrapper, at::Tensor tangent) {
  auto meta = std::make_unique<TensorMeta>();
  meta->tangent = std::move(tangent);
  wrapper.unsafeGetTensorImpl()->set_autograd_meta(std::move(meta));
}

void lend_tangent(const at::Tensor& wrapper, at::Tensor tangent) {
  give_tangent(wrapper, std::move(tangent));
  auto* meta = static_cast<TensorMeta*>(impl::get_autograd_meta(wrapper));
  meta->views_of_borrowed = std::make_unique<std::vector<WeakTensor>>();
}

void note_view(const at::Tensor& view) {
  const at::TensorBase& root = root_of(view);
  if (TensorMeta* known = borrowing(root); known != nullptr && !root.is_same(view)) {
    make_place_in(
        *known->views_of_borrowed, [](const WeakTensor& other) { return other.expired(); });
    known->views_of_borrowed->emplace_back(view.getIntrusivePtr());
  }
}

bool writes_to_borrowed(const at::Tensor& wrapper) {
  return borrowing(root_of(wrapper)) != nullptr;
}

void own_tangent(const at::Tensor& wrapper, int64_t level) {
  const at::Tensor root(root_of(wrapper));
  TensorMeta* known = borrowing(root);
  const auto views = std::move(known->views_of_borrowed);
  const at::Tensor borrowed = known->tangent;
  const at::Tensor own = copy_like(borrowed, unwrap(root, level));
  for (const WeakTensor& weak : *views) {
    if (auto impl = weak.lock()) {
      const at::Tensor view(std::move(impl));
      if (const at::Tensor tangent = tangent_of(view, level); tangent.defined()) {
        replace_tangent(view, part_like(tangent, own, borrowed));
      }
    }
  }
  known->replace(own);
}

void become_view_of(const at::Tensor& base, const at::Tensor& wrapper, at::Tensor tangent) {
  const auto creation =
      at::GradMode::is_enabled() ? CreationMeta::DEFAULT : CreationMeta::NO_GRAD_MODE;
  const auto* above = impl::get_view_autograd_meta(base);
  if (base.is_inference() || (above != nullptr && !above->shared_view_info())) {
    torch::autograd::as_view(base, wrapper, true, true, nullptr, nullptr, creation);
    if (tangent.defined()) {
      hand_over(*impl::materialize_autograd_meta(wrapper), wrapper, tangent);
      note_view(wrapper);
    }
    return;
  }
  // As torch does when reverse and forward mode share one base.
  auto* view = wrapper.unsafeGetTensorImpl();
  auto meta = std::make_unique<ViewMeta>(
      view,
      above == nullptr ? ViewInfo(base, nullptr, nullptr)
                       : above->get_backward_view().chain(base, wrapper),
      std::nullopt,
      /*shared_view_info=*/true,
      above == nullptr ? creation : propagate_creation_meta(above->get_creation_meta(), creation));
  const bool has_tangent = tangent.defined();
  meta->tangent = std::move(tangent);
  view->set_autograd_meta(std::move(meta));
  if (has_tangent) {
    note_view(wrapper);
  }
}

} // namespace torchlayers
