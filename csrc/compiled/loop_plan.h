// Kernels that are called again and again, on memory that is allocated once for all steps.
#pragma once

#include <optional>
#include <vector>

#include "compiled/kernels.h"

namespace torchlayers::compiled {

// Where a tensor's elements are: each step, `advance` bytes after the step before.
struct Place {
  char* first = nullptr;
  int64_t advance = 0;
  Layout layout;
  at::ScalarType dtype = at::kFloat;
  // The index of the allocation, if the steps make it.
  std::optional<size_t> allocation;
};

class Plan {
 public:
  explicit Plan(size_t slots) : slots_(slots) {}

  // The place of a value of the body. Slots are reused, in order.
  void put(Value slot, Place place) {
    slots_[slot] = std::move(place);
  }
  const Place& of(Value slot) const {
    return slots_[slot];
  }
  static Place fixed(const at::Tensor& tensor);

  // Add the steps of the body to the plan.
  void allocate(Value slot, const at::Tensor& tensor);
  void see(Value slot, Place place, const Layout& layout);
  void call(void* function, std::vector<Place> places);

  // Copy a result after each step. If it is all that is in its memory, `write` has it computed at
  // its destination instead.
  void copy(const Place& from, const Place& to, size_t bytes);
  void write(const Place& from, const Place& to, size_t bytes);

  void run(int64_t steps) const;

 private:
  void move(size_t allocation, const Place& to);

  struct Call {
    void* function;
    std::vector<Place> places;
  };
  struct Copy {
    Place from, to;
    size_t bytes;
  };
  std::vector<Place> slots_;
  std::vector<at::Tensor> memory_;
  std::vector<Call> calls_;
  std::vector<Copy> copies_;
};

} // namespace torchlayers::compiled
