#include "compiled/loop_plan.h"

#include <cstring>

#include "compiled/interruptible.h"

namespace torchlayers::compiled {

Place Plan::fixed(const at::Tensor& tensor) {
  return {
      static_cast<char*>(tensor.data_ptr()),
      0,
      {tensor.sizes().vec(), tensor.strides().vec()},
      tensor.scalar_type(),
      std::nullopt};
}

void Plan::allocate(Value slot, const at::Tensor& tensor) {
  Place place = fixed(tensor);
  place.allocation = memory_.size();
  memory_.push_back(tensor);
  put(slot, std::move(place));
}

void Plan::see(Value slot, Place place, const Layout& layout) {
  place.first += layout.offset * static_cast<int64_t>(c10::elementSize(place.dtype));
  place.layout = layout;
  put(slot, std::move(place));
}

void Plan::call(void* function, std::vector<Place> places) {
  calls_.push_back({function, std::move(places)});
}

void Plan::copy(const Place& from, const Place& to, size_t bytes) {
  copies_.push_back({from, to, bytes});
}

void Plan::write(const Place& from, const Place& to, size_t bytes) {
  if (from.allocation && memory_[*from.allocation].nbytes() == bytes &&
      memory_[*from.allocation].data_ptr() == from.first) {
    move(*from.allocation, to);
  } else {
    copy(from, to, bytes);
  }
}

void Plan::move(size_t allocation, const Place& to) {
  const char* before = static_cast<const char*>(memory_[allocation].data_ptr());
  const auto change = [&](Place& place) {
    if (place.allocation == allocation) {
      place.first = to.first + (place.first - before);
      place.advance = to.advance;
      place.allocation.reset();
    }
  };
  for (auto& call : calls_) {
    for (auto& place : call.places) {
      change(place);
    }
  }
  for (auto& copy : copies_) {
    change(copy.from);
  }
  for (auto& slot : slots_) {
    change(slot);
  }
}

void Plan::run(int64_t steps) const {
  Interruptible interruptible;
  Addresses addresses;
  for (int64_t step = 0; step < steps; ++step) {
    for (const auto& call : calls_) {
      const size_t count = call.places.size();
      for (size_t i = 0; i < count; ++i) {
        addresses[i] = call.places[i].first + step * call.places[i].advance;
      }
      call_kernel(call.function, addresses, count);
    }
    for (const auto& copy : copies_) {
      std::memcpy(
          copy.to.first + step * copy.to.advance,
          copy.from.first + step * copy.from.advance,
          copy.bytes);
    }
    interruptible.look();
  }
}

} // namespace torchlayers::compiled
