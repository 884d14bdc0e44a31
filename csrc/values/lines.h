// Lines of history: what of one memory autograd knows as one tensor and its views.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <atomic>
#include <vector>

namespace torchlayers {

// NOTE [Lines of history]
// y.detach() and y.data have y's memory and none of its history: numbers that are written to either
// are seen by both, but a derivative only by the one that they were written through, and its views.
// So a memory has a line of history for each tensor of it that is not a view of another, its root.
// detach is an operator and leaves a tensor that autograd does not know as a view; .data is none,
// and nobody sees it. It is known by this: its root is not what an operator has returned.
class Roots {
 public:
  // Whether a view is to be noted that is made here.
  bool are_to_know_of(bool is_detached) const {
    return is_detached || any_ || !at::GradMode::is_enabled();
  }
  // A view, or, detached, a root of a line of its own.
  void note_view(const at::Tensor& view, const at::Tensor& of, bool is_detached);

  at::Tensor root_of(const at::Tensor& tensor) const;
  bool is_detached(const at::Tensor& root) const;
  // Whether it was made where nobody records: it has no derivative of what is written later.
  bool is_unrecorded(const at::Tensor& view) const;

  void clear() {
    notes_.clear();
  }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  struct Note {
    WeakTensor tensor;
    at::Tensor view_of; // if the root is not found otherwise
    bool is_detached;   // a root
    bool is_unrecorded;
  };
  const Note* find(const at::Tensor& tensor) const;

  std::atomic<bool> any_{false};
  std::vector<Note> notes_;
};

// Makes room in a list that is full, among the dead first, so that adding one more to it takes
// constant time.
template <class List, class Dead>
void make_place_in(List& list, const Dead& is_dead) {
  if (list.size() == list.capacity()) {
    std::erase_if(list, is_dead);
    list.reserve(std::max<size_t>(16, 2 * list.size()));
  }
}

// Gives elements of a line that has no history yet that of its root, stretched to their sizes: at
// all levels, or only at that which the root is of. What the root has for numbers is not read.
void take_history_of(const at::Tensor& root, const at::Tensor& elements, bool at_all_levels);

} // namespace torchlayers
