#include "layers/functionalize/views.h"

#include <ATen/FunctionalTensorWrapper.h>

#include <algorithm>
#include <string_view>
#include <typeinfo>

#include "core/args.h"
#include "core/skip_autograd.h"
#include "layers/vmap/example_sample.h"

namespace torchlayers {
namespace {

using at::FunctionalTensorWrapper;
namespace functionalization = at::functionalization::impl;

// Protected in torch: the views that a functional tensor is made by, and whether it reads its
// strides from its value. An explicit instantiation may name them.
using ViewsOf = std::remove_cvref_t<decltype(std::declval<FunctionalTensorWrapper>().view_metas())>;
template <auto Member>
struct RevealViews {
  friend ViewsOf& revealed_views(FunctionalTensorWrapper& wrapper) {
    return wrapper.*Member;
  }
};
template struct RevealViews<&FunctionalTensorWrapper::view_metas_>;
ViewsOf& revealed_views(FunctionalTensorWrapper& wrapper);

using Policy = c10::TensorImpl::SizesStridesPolicy;
template <auto Member>
struct RevealPolicy {
  friend void set_policy(c10::TensorImpl& impl, Policy policy) {
    (impl.*Member)(policy);
  }
};
template struct RevealPolicy<&c10::TensorImpl::set_custom_sizes_strides>;
void set_policy(c10::TensorImpl& impl, Policy policy);

bool is_any_of(
    const at::functionalization::ViewMeta& view, std::initializer_list<std::string_view> kinds) {
  const auto* replayed = dynamic_cast<const ReplayedView*>(&view);
  const auto& of_torch = replayed != nullptr ? replayed->of_torch() : view;
  const std::string_view name = typeid(of_torch).name();
  return std::ranges::any_of(
      kinds, [&](std::string_view kind) { return name.find(kind) != std::string_view::npos; });
}

// Whether a view covers all of the memory, reinterpreted: as real numbers, conjugated, or detached.
bool is_of_all_memory(const ViewsOf::value_type& view) {
  return is_any_of(
      *view,
      {"view_as_real_", "view_as_complex_", "view_dtype_", "_conj_", "_neg_view_", "detach_"});
}

// A view that reinterprets neighbouring elements, of the memory as a list: pairs of them for
// view_as_complex, which needs a last dimension of two. Without the views in between, the memory
// may have any sizes.
class OfListedMemory final : public ReplayedView {
 public:
  using ReplayedView::ReplayedView;

  at::Tensor forward(const at::Tensor& base) override {
    return of_torch().forward(listed(base));
  }
  at::Tensor reverse(const at::Tensor& base, const at::Tensor& written) override {
    const at::Tensor list = listed(base);
    return base.as_strided_scatter_symint(
        of_torch().reverse(list, written), list.sym_sizes(), list.sym_strides(), /*offset=*/0);
  }

 private:
  at::Tensor listed(const at::Tensor& base) const {
    const c10::SymInt count = base.sym_numel();
    return is_any_of(of_torch(), {"view_as_complex_"})
               ? base.as_strided_symint({count / 2, 2}, {2, 1}, /*offset=*/0)
               : base.as_strided_symint({count}, {1}, /*offset=*/0);
  }
};

bool is_to_be_listed(const ViewsOf::value_type& view) {
  return dynamic_cast<const OfListedMemory*>(view.get()) == nullptr &&
         is_any_of(*view, {"view_as_complex_", "view_dtype_"});
}

// Whether a view may show an element more than once. (So may expand, which has an inverse.)
bool may_overlap(const ViewsOf::value_type& view) {
  return is_any_of(*view, {"unfold_", "as_strided_"});
}

// Whether it shows an element of its memory more than once. Elements that lie in between each other
// may be taken for those.
bool overlaps_itself(const at::Tensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> dims; // stride and size
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1) {
      dims.emplace_back(tensor.stride(i), tensor.size(i));
    }
  }
  std::ranges::sort(dims);
  int64_t reach = 0;
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) {
      return true;
    }
    reach += stride * (size - 1);
  }
  return false;
}

bool changes_how_it_is_seen(const Operator& op) {
  return op.handle.hasTag(at::Tag::inplace_view);
}

void set_strides(
    const at::Tensor& tensor,
    c10::SymIntArrayRef sizes,
    c10::SymIntArrayRef strides,
    const c10::SymInt& offset) {
  if (tensor.sym_sizes() == sizes &&
      (tensor.sym_strides() != strides || tensor.sym_storage_offset() != offset)) {
    auto* impl = tensor.unsafeGetTensorImpl();
    set_policy(*impl, Policy::Default);
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
}

} // namespace

bool is_functional(const at::Tensor& tensor) {
  return functionalization::isFunctionalTensor(tensor);
}

bool has_known_strides(const at::Tensor& tensor) {
  return is_strided(tensor) && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

ViewsOf& views_of(FunctionalTensorWrapper& wrapper) {
  return revealed_views(wrapper);
}

ReplayedView::ReplayedView(std::shared_ptr<ViewMeta> of_torch)
    : ViewMeta(of_torch->has_symbolic_inputs), of_torch_(std::move(of_torch)) {
  out_index = of_torch_->out_index;
  is_multi_output = of_torch_->is_multi_output;
  is_as_strided = of_torch_->is_as_strided;
}

KeptStrides::KeptStrides(const Operator& op, const Args& args) {
  if (!op.written_args.empty() && changes_how_it_is_seen(op)) {
    return;
  }
  visit_tensors(args, op.num_args, [this](const at::Tensor& tensor) {
    if (is_functional(tensor) && has_known_strides(tensor)) {
      kept_.push_back(
          {tensor,
           at::SymDimVector(tensor.sym_sizes()),
           at::SymDimVector(tensor.sym_strides()),
           tensor.sym_storage_offset()});
    }
  });
}

void KeptStrides::restore() const {
  for (const Kept& kept : kept_) {
    set_strides(kept.tensor, kept.sizes, kept.strides, kept.offset);
  }
}

std::optional<Args> views_without_values(const Operator& op, const Args& args) {
  const bool makes_views = op.aliases && (op.written_args.empty() || changes_how_it_is_seen(op)) &&
                           any_tensor(args, op.num_args, &is_functional) &&
                           !any_tensor(args, op.num_args, [](const at::Tensor& tensor) {
                             return !has_known_strides(tensor);
                           });
  if (!makes_views) {
    return std::nullopt;
  }
  try {
    return run_on_meta(op, args);
  } catch (const c10::Error&) {
    return std::nullopt; // strides that it rejects may be fine for a copy
  }
}

std::optional<Args> views_of_overlapping(const Operator& op, const Args& args) {
  const bool may_make_views = op.aliases && op.written_args.empty() && !op.detaches &&
                              !op.always_wraps && !op.makes_dual && !op.unpacks_dual &&
                              peek(args, 0, op.num_args).isTensor();
  if (!may_make_views) {
    return std::nullopt;
  }
  const at::Tensor& of = peek(args, 0, op.num_args).toTensor();
  if (!is_functional(of) || !has_known_strides(of) ||
      std::ranges::none_of(
          views_of(*functionalization::unsafeGetFunctionalWrapper(of)), &may_overlap) ||
      !overlaps_itself(of) || overlaps_itself(whole_of(of))) {
    return std::nullopt;
  }
  auto views = views_without_values(op, args);
  const auto is_other = [&](const at::Tensor& view) {
    return view.dtype() != of.dtype() || view.is_conj() != of.is_conj() ||
           view.is_neg() != of.is_neg();
  };
  return views && !any_tensor(*views, op.num_returns, is_other) ? views : std::nullopt;
}

void lay_out_like(const Args& views, size_t count, const Args& results) {
  std::vector<at::Tensor> given;
  visit_tensors(views, count, [&](const at::Tensor& view) { given.push_back(view); });
  size_t i = 0;
  visit_tensors(results, count, [&](const at::Tensor& result) {
    if (i < given.size() && is_functional(result)) {
      const at::Tensor& view = given[i];
      set_strides(result, view.sym_sizes(), view.sym_strides(), view.sym_storage_offset());
    }
    ++i;
  });
}

void allow_as_strided(const at::Tensor& view) {
  for (const auto& made_by : views_of(*functionalization::unsafeGetFunctionalWrapper(view))) {
    made_by->is_as_strided = false;
  }
}

at::Tensor whole_of(const at::Tensor& view) {
  auto* impl = functionalization::unsafeGetFunctionalWrapper(view);
  if (std::ranges::all_of(views_of(*impl), &is_of_all_memory)) {
    return view;
  }
  const at::Tensor whole(impl->shallow_copy_and_detach(
      impl->version_counter(), /*allow_tensor_metadata_change=*/true));
  auto* of_whole = functionalization::unsafeGetFunctionalWrapper(whole);
  auto& views = views_of(*of_whole);
  std::erase_if(views, [](const auto& view) { return !is_of_all_memory(view); });
  for (auto& view : views) {
    if (is_to_be_listed(view)) {
      view = std::make_shared<OfListedMemory>(view);
    }
  }
  of_whole->apply_updates();
  of_whole->regenerate_from_base();
  return whole;
}

} // namespace torchlayers
