#include "layers/hook_level.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "core/stack.h"

namespace torchlayers {
namespace {

bool are_one(const at::functorch::DynamicLayer& a, const at::functorch::DynamicLayer& b) {
  return a.interpreter().is_alive_ptr() == b.interpreter().is_alive_ptr();
}

// The thread's stack, and above it those of the place's layers that it lacks. Throws if another
// layer is where a vmap of the hook's has to be.
StackCopy with_layers_above(const StackCopy& of_place, const std::vector<Hold>& holds) {
  StackCopy stack = mirror();
  for (const Hold& hold : holds) {
    for (const auto& [level, dim] : hold.samples) {
      const auto place = static_cast<size_t>(level - 1);
      if (dim >= 0 && place < stack.size() && !are_one(stack[place], of_place[place])) {
        raise(
            "a hook was registered on a tensor inside vmap (level {}), and its gradient is "
            "computed inside {} other transforms, {}, so that vmap can't be restored at its level. "
            "Call the function that vjp returned inside fewer transforms, or register the hook on "
            "a tensor outside vmap.",
            level,
            stack.size(),
            describe_stack());
      }
    }
  }
  if (stack.size() < of_place.size()) {
    stack.insert(
        stack.end(), of_place.begin() + static_cast<int64_t>(stack.size()), of_place.end());
  }
  return stack;
}

} // namespace

HookPlace::HookPlace(std::vector<Hold> holds) : holds_(std::move(holds)) {
  int64_t innermost = 0;
  for (const Hold& hold : holds_) {
    innermost = std::max(innermost, hold.innermost_vmap());
  }
  if (innermost > 0) {
    stack_ = to_run_on_later({mirror().begin(), mirror().begin() + innermost});
  }
}

HookPlace::Inside::Inside(const HookPlace& place)
    : holds_(place.holds_),
      levels_outside_(std::ssize(mirror())),
      earlier_(with_layers_above(*place.stack_, place.holds_), Modes::of_thread().grad) {}

at::Tensor HookPlace::Inside::shown(const at::Tensor& gradient, size_t i) const {
  return shown_by(holds_.at(i), gradient, levels_outside_);
}

at::Tensor HookPlace::Inside::taken(const at::Tensor& made, size_t i) const {
  return taken_from(holds_.at(i), made);
}

} // namespace torchlayers
