// Lines of history: the tensors of one memory that autograd knows as one base and its views.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <atomic>
#include <vector>

namespace torchlayers {

// NOTE [Lines of history]
// y.detach() and y.data have y's memory and none of its history: a value written to either is seen
// by both, but its derivative only by the tensor that was written through, and its views. So a
// memory has a line of history for each of its tensors that is not a view of another; that tensor
// is the line's root. detach is an operator whose result autograd does not treat as a view; .data
// is no operator, so no layer sees it. It is recognized by its root, which no operator has
// returned.
class ViewRoots {
 public:
  // Whether a view that is made now has to be noted.
  bool are_to_know_of(bool is_detached) const {
    return is_detached || any_ || !at::GradMode::is_enabled();
  }
  // Notes a view, or, if it is detached, the root of a new line.
  void note_view(const at::Tensor& view, const at::Tensor& of, bool is_detached);

  at::Tensor root_of(const at::Tensor& tensor) const;
  bool is_detached(const at::Tensor& root) const;
  // Whether it was made with recording off: then it has no derivative of what is written later.
  bool is_unrecorded(const at::Tensor& view) const;

  void clear() {
    notes_.clear();
  }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  struct Note {
    WeakTensor tensor;
    at::Tensor view_of; // if the root can't be found otherwise
    bool is_detached;   // a root
    bool is_unrecorded;
  };
  const Note* find(const at::Tensor& tensor) const;

  std::atomic<bool> any_{false};
  std::vector<Note> notes_;
};

// Makes room in a full list, by erasing dead elements if there are any, so that appending takes
// constant time on average.
template <class List, class Dead>
void make_place_in(List& list, const Dead& is_dead) {
  if (list.size() == list.capacity()) {
    std::erase_if(list, is_dead);
    list.reserve(std::max<size_t>(16, 2 * list.size()));
  }
}

// Gives elements of a line without a history the history of the line's root, expanded to their
// sizes: at all levels, or only at the root's level. The root's values are not read.
void take_history_of(const at::Tensor& root, const at::Tensor& elements, bool at_all_levels);

// Whether it requires grad or has a tangent, at its own level, or at any level below as well.
bool has_history(const at::Tensor& tensor, bool at_all_levels);
// Gives a tensor without a history the place and the tangent that `other` has at its own level.
void give_history_of(const at::Tensor& other, const at::Tensor& numbers);

} // namespace torchlayers
