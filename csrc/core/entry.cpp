#include "core/entry.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>

#include <algorithm>
#include <vector>

#include "core/errors.h"
#include "core/modes.h"
#include "core/stack.h"

namespace torchlayers {
namespace {

constexpr const char* kNoHooks =
    "torchlayers: saved-tensor hooks (checkpointing, save_on_cpu) don't work inside grad, vjp, "
    "jacrev and hessian: they would run between the layers. Use them around plain autograd, "
    "outside the transformed function.";

// The entries of this thread that have not been left, outermost first. They are kept
// alive here: a suspended generator may let go of one on another thread.
thread_local std::vector<std::shared_ptr<Entry>> open_entries;

} // namespace

void (*hold_dual_level)() = [] {};
void (*release_dual_level)() = [] {};

int64_t Entry::enter() {
  TORCH_CHECK(!layer_, "torchlayers: this entry has been entered already");
  modes_outside_ = Modes::of_thread();
  auto layer = prepare();
  try {
    push(layer);
  } catch (...) {
    undo();
    modes_outside_.set();
    throw;
  }
  layer_ = std::move(layer);
  open_entries.push_back(shared_from_this());
  return layer_->level();
}

void Entry::leave() {
  TORCH_CHECK(layer_, "torchlayers: this entry has not been entered");
  const bool is_open_here =
      std::any_of(open_entries.begin(), open_entries.end(), [this](const auto& entry) {
        return entry.get() == this;
      });
  const bool is_taken_off =
      is_open_here && !is_on_stack(*layer_) && Processing::of(*layer_) == nullptr;
  int64_t left_behind = 0;
  if (is_taken_off) {
    forget(*layer_);
  } else {
    left_behind = pop(*layer_);
  }
  const auto layer = std::move(layer_);
  // Entries inside this one that were not left are put back with it, innermost first.
  // They keep their layers: leaving them later says that those are gone.
  while (open_entries.back().get() != this) {
    const auto inner = open_entries.back();
    inner->put_back();
  }
  put_back();
  if (autocast_is_on()) {
    // Autocast keeps casts of weights, and has kept some of this layer's wrappers.
    at::autocast::clear_cache();
  }
  if (is_taken_off) {
    raise(
        layer->name(),
        " is not on the stack any more on leaving it: the stack is ",
        describe_stack(),
        ". A kernel or program inside has popped torch.func's stack and has not pushed back what "
        "it "
        "popped.");
  }
  if (left_behind > 0) {
    raise(
        "on leaving ",
        layer->name(),
        ", ",
        left_behind,
        " layer(s) entered inside it had not been left; they were taken off the stack. A generator "
        "or coroutine suspended inside a transform does this.");
  }
}

void Entry::put_back() {
  open_entries.pop_back();
  undo();
  modes_outside_.set();
}

std::shared_ptr<Layer> GradEntry::prepare() {
  if (!at::SavedTensorDefaultHooks::get_tls_state().stack.empty()) {
    raise(
        "grad, vjp, jacrev and hessian can't run inside a `with` block of saved-tensor hooks "
        "(checkpointing, save_on_cpu): the hooks would run between the layers. Call the transform "
        "outside that block.");
  }
  hooks_message_ = at::SavedTensorDefaultHooks::get_disabled_error_message();
  at::SavedTensorDefaultHooks::disable(kNoHooks);
  auto& state = c10::AutogradState::get_tls_state();
  auto layer = std::make_shared<GradLayer>(state.get_grad_mode(), c10::InferenceMode::is_enabled());
  without_inference(no_inference_);
  state.set_grad_mode(true);
  return layer;
}

void GradEntry::undo() {
  no_inference_.reset();
  if (hooks_message_) {
    at::SavedTensorDefaultHooks::disable(*hooks_message_);
  } else {
    at::SavedTensorDefaultHooks::enable();
  }
}

std::shared_ptr<Layer> JvpEntry::prepare() {
  hold_dual_level();
  auto& state = c10::AutogradState::get_tls_state();
  auto layer =
      std::make_shared<JvpLayer>(state.get_fw_grad_mode(), c10::InferenceMode::is_enabled());
  without_inference(no_inference_);
  state.set_fw_grad_mode(true);
  return layer;
}

void JvpEntry::undo() {
  no_inference_.reset();
  release_dual_level();
}

std::shared_ptr<Layer> VmapEntry::prepare() {
  return std::make_shared<VmapLayer>(batch_size_, randomness_);
}

std::shared_ptr<Layer> FunctionalizeEntry::prepare() {
  // Between two of them another layer has to wrap what the outer one made functional.
  if (!mirror().empty() && mirror().back().key() == at::functorch::TransformType::Functionalize) {
    raise(
        "functionalize can't be applied directly inside functionalize: what is functional already "
        "(level ",
        mirror().back().layerId(),
        ") can't be made so again. Apply it once.");
  }
  return std::make_shared<FunctionalizeLayer>(keeps_views_);
}

} // namespace torchlayers
