// A second device: two of them, whose memory is the processor's but out of its reach, and whose
// streams say when they should have waited for each other.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <string>
#include <vector>

namespace second {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
inline constexpr c10::DeviceIndex kCount = 2;

// Where a kernel reaches what a tensor's address leads to. The processor faults at the address
// itself, so nothing computes with numbers that are on a GPU, really.
void* reachable(void* address);

c10::Stream current_stream(c10::DeviceIndex device);

// Work is done at once, on whatever stream, but each stream knows what it would have waited for:
// its own work, what events and the host made it wait for. So reading what a stream need not have
// written yet is noticed, and everything of the kind: a hazard.
class Work {
 public:
  Work(std::string name, c10::Stream stream);
  void reads(const c10::TensorImpl& tensor);
  void writes(const c10::TensorImpl& tensor);

 private:
  std::string name_;
  c10::Stream stream_;
};

void wait_for(c10::Stream waiting, c10::Stream other);
// The host waits. Throws while that is forbidden.
void synchronize(const std::string& why, c10::Stream stream);

// What was launched since this was asked last: "aten::mul.Tensor on 3", of the stream's number.
std::vector<std::string> launches();
void note_launch(const std::string& name, c10::Stream stream);

} // namespace second
