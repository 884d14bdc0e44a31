// Tensors that the function inside a vmap has created and then written batched values to.
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
#include "values/strided_region.h"
#include "values/view_roots.h"

namespace torchlayers {

// NOTE [Made inside]
// y = torch.zeros(3) inside a vmap is a plain tensor with room for one sample: nothing in it
// depends on the batch, and operators on it run once. y[0] = x[0] gives each sample a y of its own.
// So the layer notes which memory has been allocated since it was entered (the storage of a result
// that is not an argument's), which takes a weak pointer in a list. The first write of a batched
// value to it moves the memory: a copy is made that is as large as the batch, and from then on
// every tensor on the old memory represents the part of the new one that its offset, sizes and
// strides select. The holder of such a tensor (the user, a list, a view made before, a wrapper of a
// layer above, a node that has saved it) need not know: its operators come to this layer, which
// substitutes the batched tensor. The write then happens in place, so views and their bases see it,
// and autograd below the layer sees the copy, views of it and writes to them, as it would for one
// sample. The old memory is closed: reading it past the layer (in a kernel after vmap has ended, or
// by numpy) raises an error that says so, and never gives the values from before the write. It also
// counts as written to, for nodes below that have saved it. A tensor that the layer has not seen
// created is captured, or an argument that is not batched: all samples share one tensor outside,
// and a batched write to it is an error. In nested vmaps each layer keeps its own notes. Memory
// that a lower layer has moved is looked up under its new storage as well (`trail`), because views
// made since have that one; the lower layer tells the layers above whose operator it is running
// that memory in their notes has moved. A tensor that shares the memory but not the history gets
// its own detached alias of the new memory. NOTE [Lines of history].

class LocalStorages {
 public:
  explicit LocalStorages(Layer& layer) : layer_(layer) {}

  // Whether any memory has been moved. If not, every tensor represents itself.
  bool any_written() const {
    return any_written_.load(std::memory_order_relaxed);
  }

  using Memories = c10::SmallVector<const c10::StorageImpl*, 4>;
  // The storages by which a layer of this level may know the tensor.
  static Memories memories_of(const at::Tensor& tensor, int64_t level);

  // Notes a result of an operator whose arguments have the storages `given`.
  void note(const at::Tensor& result, const Memories& given);
  // NOTE [Lines of history]
  void note_view(const at::Tensor& view, const at::Tensor& of, bool is_detached);

  bool has_made(const at::Tensor& tensor) const;
  bool has_written(const at::Tensor& tensor) {
    return shown(tensor).defined();
  }
  // The batched tensor that it represents; undefined if it was not written to.
  at::Tensor shown(const at::Tensor& tensor) {
    const bool may_be = any_written() && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
    return may_be ? find_shown(tensor) : at::Tensor();
  }

  // Moves its memory, which was made inside, so that there is room for a value per sample.
  void make_room(const at::Tensor& tensor);

  // Called when the layer ends. A copy of the stack may keep the layer, to recompute a checkpoint
  // on it (NOTE [Where a hook runs]): then tensors on memory that has been moved still represent
  // their values, without the graphs that led to them, which may hold such a copy.
  void end();

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  struct Made {
    WeakStorage memory;
    WeakTensor whole; // the result that it was created for
    Extent extent;
  };
  struct Line {
    WeakTensor root;
    at::Tensor to;
  };
  struct Moved {
    WeakStorage from;
    Extent extent;
    at::Tensor to;   // a tensor of the layers below: (batch, count)
    WeakTensor root; // of the line of history of `to`
    std::vector<Line> others;
  };
  struct Shown {
    WeakTensor alias;
    StridedRegion place; // at the time of the lookup
    at::Tensor stands_for;
  };

  at::Tensor find_shown(const at::Tensor& tensor);
  void add_made(Made made);
  // The moved memory as the line of this root sees it. Called below the layer, with grad mode on.
  const at::Tensor& elements_of(const at::Tensor& root, Moved& moved);

  const Moved* moved_from(const c10::StorageImpl* memory) const;
  const Made* made_of(const c10::StorageImpl* memory) const;
  static StridedRegion after(const Moved& moved, const StridedRegion& place);
  // Follows a place to where lower layers have moved it, until `visit` returns false.
  template <class Visit>
  static StridedRegion trail(StridedRegion place, int64_t level, const Visit& visit);
  std::pair<Moved*, StridedRegion> find(const at::Tensor& tensor);
  at::Tensor room(int64_t count, const at::Tensor& like) const;
  // Called when a lower layer has moved memory: if it was made inside this layer, so is the new
  // one.
  void follow(const Memories& from, const at::Tensor& to, const Extent& extent);
  void cut_graphs(at::Tensor& to) const;
  // The line of history that had this root has another one from now on.
  void replace_root(const at::Tensor& before, const at::Tensor& root);

  Layer& layer_;
  std::atomic<bool> any_written_{false};
  mutable std::recursive_mutex mutex_; // the engine's threads use the layer too
  std::vector<Made> made_;
  std::unordered_map<const c10::StorageImpl*, Moved> moved_;
  std::unordered_map<const c10::TensorImpl*, Shown> shown_;
  ViewRoots roots_;
};

// Whether two tensors of the layer, or of the layers below it, share memory.
bool share_memory(const at::Tensor& one, const at::Tensor& other, const Layer& layer);

} // namespace torchlayers
