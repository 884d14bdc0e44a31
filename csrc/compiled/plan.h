// Kernels that are called again and again, on memory that is there once for all steps.
#pragma once

#include <optional>
#include <vector>

#include "compiled/kernels.h"

namespace torchlayers::compiled {

// Where a tensor's elements are: in each step so many bytes behind where they were.
struct Place {
  char* first = nullptr;
  int64_t advance = 0;
  Layout layout;
  at::ScalarType dtype = at::kFloat;
  // Of what the steps allocate; else none.
  std::optional<size_t> allocation;
};

class Plan {
 public:
  explicit Plan(size_t slots) : slots_(slots) {}

  // What a value of the body is. Slots are used again, in order.
  void put(Value slot, Place place) {
    slots_[slot] = std::move(place);
  }
  const Place& of(Value slot) const {
    return slots_[slot];
  }
  static Place fixed(const at::Tensor& tensor);

  // What the steps of the body come to.
  void allocate(Value slot, const at::Tensor& tensor);
  void see(Value slot, Place place, const Layout& layout);
  void call(void* function, std::vector<Place> places);

  // A result is copied after each step; or, where it is all that is in its memory, it is computed
  // where it is to go.
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
