// What the function inside a vmap has made itself, and has written a value of each sample to.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/layer.h"
#include "values/lines.h"
#include "values/places.h"

namespace torchlayers {

// NOTE [Made inside]
// y = torch.zeros(3) inside a vmap is a plain tensor with room for one sample: nothing in it
// depends on the batch, and what is computed of it is computed once. y[0] = x[0] gives each sample
// a y of its own. So the layer notes which memory has been made since it was entered (the storage
// of what an operator returned and was not given), which takes a weak pointer in a list. At the
// first write of a batched value to it the memory moves: a copy is made that is as large as the
// batch, and from then on every tensor that had the old memory stands for the part of the new one
// that its offset, sizes and strides name. Whoever holds such a tensor (the user, a list, a view
// made before, a wrapper of a layer above, a node that has saved it) needs to know nothing of that:
// operators come to this layer, which puts the batched tensor in its place. What is written to is
// written in place then, so views and their bases see it, and autograd below the layer sees the
// copy, views of it and writes to them, as it would those of one sample. The old memory is closed:
// who reads it past the layer (a kernel after vmap has ended, numpy) gets an error that says so,
// never the numbers of before the write. And it counts as written to, for a node below that has
// saved it. What the layer has not seen made is captured, or an argument that is not batched: its
// samples are one and the same tensor outside, and a batched write to it is refused. Where vmaps
// nest, each notes for itself. Memory that a lower layer has moved is looked for under its new
// storage as well (`trail`), for views made since have that one; the lower layer tells the layers
// above, whose operator it is running, that what they made has moved. What shares the memory and
// not the history has an alias of the new memory to itself, detached. NOTE [Lines of history].

class Inside {
 public:
  explicit Inside(Layer& layer) : layer_(layer) {}

  // Whether anything has been moved: where nothing has, every tensor is what it is.
  bool any_written() const {
    return any_written_.load(std::memory_order_relaxed);
  }

  using Memories = c10::SmallVector<const c10::StorageImpl*, 4>;
  // Those that a tensor is known by to a layer of this level.
  static Memories memories_of(const at::Tensor& tensor, int64_t level);

  // A result of an operator that was given these.
  void note(const at::Tensor& result, const Memories& given);
  // NOTE [Lines of history]
  void note_view(const at::Tensor& view, const at::Tensor& of, bool is_detached);

  bool has_made(const at::Tensor& tensor) const;
  bool has_written(const at::Tensor& tensor) {
    return shown(tensor).defined();
  }
  // The batched tensor that it stands for; undefined where it was not written to.
  at::Tensor shown(const at::Tensor& tensor) {
    const bool may_be = any_written() && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
    return may_be ? find_shown(tensor) : at::Tensor();
  }

  // Moves its memory, which was made inside, for a value of each sample to be written.
  void make_room(const at::Tensor& tensor);

  // The layer is over.
  void clear();

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  struct Made {
    WeakStorage memory;
    WeakTensor whole; // as it was made
    Extent extent;
  };
  struct Line {
    WeakTensor root;
    at::Tensor to;
  };
  struct Moved {
    WeakStorage from;
    Extent extent;
    at::Tensor to;   // of the layers below: (batch, count)
    WeakTensor root; // of its line
    std::vector<Line> others;
  };
  struct Shown {
    WeakTensor alias;
    Place place; // where it was when it was asked for
    at::Tensor stands_for;
  };

  at::Tensor find_shown(const at::Tensor& tensor);
  void add_made(Made made);
  // The moved memory as the line of this root knows it. Called below the layer, recording.
  const at::Tensor& elements_of(const at::Tensor& root, Moved& moved);

  const Moved* moved_from(const c10::StorageImpl* memory) const;
  const Made* made_of(const c10::StorageImpl* memory) const;
  static Place after(const Moved& moved, const Place& place);
  // The place, and where lower layers have moved it, until `visit` has seen enough.
  template <class Visit>
  static Place trail(Place place, int64_t level, const Visit& visit);
  std::pair<Moved*, Place> find(const at::Tensor& tensor);
  at::Tensor room(int64_t count, const at::Tensor& like) const;
  // A lower layer has moved it: if it was made inside this one too, it still is.
  void follow(const Memories& from, const at::Tensor& to, const Extent& extent);

  Layer& layer_;
  std::atomic<bool> any_written_{false};
  mutable std::recursive_mutex mutex_; // the engine's threads use the layer too
  std::vector<Made> made_;
  std::unordered_map<const c10::StorageImpl*, Moved> moved_;
  std::unordered_map<const c10::TensorImpl*, Shown> shown_;
  Roots roots_;
};

// Whether these tensors of the layer, or of those below it, do.
bool share_memory(const at::Tensor& one, const at::Tensor& other, const Layer& layer);

} // namespace torchlayers
