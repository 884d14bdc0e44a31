#include "device.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

namespace second {
namespace {

// Nothing here is destroyed: tensors may outlive it.
auto& mutex = *new std::recursive_mutex; // of all that is here
using Lock = std::lock_guard<std::recursive_mutex>;

// ---- streams

using StreamKey = std::pair<c10::DeviceIndex, c10::StreamId>;
using Clock = std::map<StreamKey, uint64_t>; // how much of each stream's work has been waited for

auto& seen = *new std::map<StreamKey, Clock>;
auto& seen_by_host = *new Clock;
c10::StreamId last_stream = 0;
thread_local c10::DeviceIndex device_of_thread = 0;
thread_local c10::StreamId streams_of_thread[kCount] = {0, 0};

auto& launched = *new std::vector<std::string>;
auto& hazards = *new std::vector<std::string>;
auto& waits = *new std::vector<std::string>;
bool is_forbidden = false;

StreamKey key_of(c10::Stream stream) {
  return {stream.device_index(), stream.id()};
}

std::string show(const StreamKey& key) {
  return "second:" + std::to_string(key.first) + "'s stream " + std::to_string(key.second);
}

void join(Clock& clock, const Clock& other) {
  for (const auto& [stream, time] : other) {
    clock[stream] = std::max(clock[stream], time);
  }
}

// The stream whose work is not waited for; null if there is none.
const StreamKey* ahead_of(const Clock& clock, const Clock& work) {
  for (const auto& [stream, time] : work) {
    const auto found = clock.find(stream);
    if (found == clock.end() || found->second < time) {
      return &stream;
    }
  }
  return nullptr;
}

// Nobody has asked for a long time: a benchmark runs.
void note(std::vector<std::string>& list, std::string text) {
  constexpr size_t kMost = 1 << 16;
  if (list.size() == kMost) {
    list.clear();
  }
  list.push_back(std::move(text));
}

void count_waiting(const std::string& why) {
  TORCH_CHECK(!is_forbidden, "second device: ", why, " makes the host wait");
  note(waits, why);
}

struct Event {
  Clock seen;
};

// ---- memory

constexpr size_t kArena = size_t{4} << 30;
constexpr size_t kAlignment = 64;

struct Block {
  size_t size;
  StreamKey home; // whose memory it is again when it is freed
  Clock written, read;
  std::set<StreamKey> recorded;
};

// The memory is mapped twice: nobody may touch the first, whose addresses tensors have, and kernels
// use the second.
struct Arena {
  char* of_tensors;
  char* of_kernels;

  Arena() {
    const int file = memfd_create("second device", MFD_CLOEXEC);
    TORCH_CHECK(file >= 0 && ftruncate(file, kArena) == 0, "second device: no memory");
    const auto mapped = [&](int protection) {
      void* start = mmap(nullptr, kArena, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
      TORCH_CHECK(start != MAP_FAILED, "second device: no address space");
      return static_cast<char*>(start);
    };
    of_tensors = mapped(PROT_NONE);
    of_kernels = mapped(PROT_READ | PROT_WRITE);
    close(file);
  }
};

const Arena& arena() {
  static const Arena both;
  return both;
}

auto& blocks = *new std::map<char*, Block>;
auto& holes = *new std::map<char*, size_t>;
size_t end_of_used = 0; // of the arena
auto& statistics = *new std::array<c10::CachingDeviceAllocator::DeviceStats, kCount>;

char* take(size_t size) {
  for (auto hole = holes.begin(); hole != holes.end(); ++hole) {
    if (hole->second >= size) {
      const auto [start, room] = *hole;
      holes.erase(hole);
      if (room > size) {
        holes[start + size] = room - size;
      }
      return start;
    }
  }
  TORCH_CHECK(end_of_used + size <= kArena, "second device: out of memory");
  char* start = arena().of_tensors + end_of_used;
  end_of_used += size;
  return start;
}

void give_back(char* start, size_t size) {
  auto next = holes.lower_bound(start);
  if (next != holes.end() && start + size == next->first) {
    size += next->second;
    next = holes.erase(next);
  }
  if (next != holes.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == start) {
      before->second += size;
      return;
    }
  }
  holes[start] = size;
}

Block* block_of(const c10::TensorImpl& tensor) {
  if (!tensor.has_storage()) {
    return nullptr;
  }
  const auto found = blocks.find(static_cast<char*>(tensor.storage().data_ptr().get_context()));
  return found == blocks.end() ? nullptr : &found->second;
}

void record_use(const c10::DataPtr& data, const c10::Stream& stream) {
  const Lock lock(mutex);
  const auto found = blocks.find(static_cast<char*>(data.get_context()));
  if (found != blocks.end()) {
    found->second.recorded.insert(key_of(stream));
  }
}

// The home stream's next work gets the memory: it has to come after all that used it.
void look_at_freed(const Block& block) {
  for (const Clock* work : {&block.written, &block.read}) {
    for (const auto& [stream, time] : *work) {
      const bool is_waited_for = stream == block.home || block.recorded.count(stream) > 0 ||
                                 ahead_of(seen[block.home], {{stream, time}}) == nullptr ||
                                 ahead_of(seen_by_host, {{stream, time}}) == nullptr;
      if (!is_waited_for) {
        hazards.push_back(
            "memory of " + show(block.home) + " is freed while " + show(stream) + " uses it");
      }
    }
  }
}

// Of a device's counters, those that change: nothing is kept for later, so all bytes are the same.
template <class Visit>
void visit_counters(c10::DeviceIndex device, const Visit& visit) {
  auto& all = statistics.at(device);
  const auto of_all_sizes = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  for (auto* number : {&all.allocation, &all.active}) {
    visit((*number)[of_all_sizes], /*is_bytes=*/false);
  }
  for (auto* bytes :
       {&all.allocated_bytes, &all.active_bytes, &all.reserved_bytes, &all.requested_bytes}) {
    visit((*bytes)[of_all_sizes], /*is_bytes=*/true);
  }
}

void count(const Block& block, bool is_taken) {
  visit_counters(block.home.first, [&](c10::CachingAllocator::Stat& counter, bool is_bytes) {
    const size_t amount = is_bytes ? block.size : 1;
    is_taken ? counter.increase(amount) : counter.decrease(amount);
  });
}

void release(void* start) {
  const Lock lock(mutex);
  const auto found = blocks.find(static_cast<char*>(start));
  look_at_freed(found->second);
  count(found->second, /*is_taken=*/false);
  give_back(found->first, found->second.size);
  blocks.erase(found);
}

struct Memory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override {
    const Lock lock(mutex);
    const c10::Device device(kType, device_of_thread);
    if (size == 0) {
      return {nullptr, nullptr, &c10::detail::deleteNothing, device};
    }
    size = (size + kAlignment - 1) / kAlignment * kAlignment;
    char* start = take(size);
    blocks[start] = {size, key_of(current_stream(device.index())), {}, {}, {}};
    count(blocks[start], /*is_taken=*/true);
    std::memset(reachable(start), 0xff, size); // nan: nobody may count on what was there
    return {start, start, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(reachable(to), reachable(const_cast<void*>(from)), size);
  }

  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    record_use(data, stream);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const Lock lock(mutex);
    return statistics.at(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    const Lock lock(mutex);
    visit_counters(device, [](auto& counter, bool) { counter.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    const Lock lock(mutex);
    visit_counters(device, [](auto& counter, bool) { counter.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    const Lock lock(mutex);
    size_t free = kArena - end_of_used;
    for (const auto& [start, room] : holes) {
      free += room;
    }
    return {free, kArena};
  }
};

auto& memory = *new Memory;
REGISTER_ALLOCATOR(kType, &memory);

// ---- what torch asks of a device

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kType;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    return {kType, device_of_thread};
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() >= 0 && device.index() < kCount, "there is no ", device);
    device_of_thread = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    device_of_thread = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return current_stream(index_of(device));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream(index_of(device), 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    const Lock lock(mutex);
    return stream(index_of(device), ++last_stream);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const auto before = current_stream(next.device_index());
    streams_of_thread[next.device_index()] = next.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return kCount;
  }

  void record(
      void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    const Lock lock(mutex);
    const Work marker("an event", stream);
    if (*event == nullptr) {
      *event = new Event;
    }
    static_cast<Event*>(*event)->seen = seen[key_of(stream)];
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      const Lock lock(mutex);
      join(seen[key_of(stream)], static_cast<Event*>(event)->seen);
    }
  }
  bool queryEvent(void*) const override {
    return true;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      const Lock lock(mutex);
      count_waiting("synchronizing with an event");
      join(seen_by_host, static_cast<Event*>(event)->seen);
    }
  }
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronize("synchronize", stream);
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    const Lock lock(mutex);
    count_waiting("synchronizing with a device");
    for (const auto& [stream, clock] : seen) {
      if (stream.first == device) {
        join(seen_by_host, clock);
      }
    }
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_use(data, stream);
  }

 private:
  static c10::DeviceIndex index_of(c10::Device device) {
    return device.has_index() ? device.index() : device_of_thread;
  }
  static c10::Stream stream(c10::DeviceIndex device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, {kType, device}, id);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return kCount;
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return device_of_thread;
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    device_of_thread = device;
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(device_of_thread, device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? device_of_thread : exchangeDevice(device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    auto grown = memory.allocate(size);
    if (storage.data() != nullptr && size > 0) {
      std::memcpy(
          reachable(grown.get()),
          reachable(storage.mutable_data()),
          std::min(size, storage.nbytes()));
    }
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(grown));
    storage.unsafeGetStorageImpl()->set_nbytes(size);
  }
};

const bool has_hooks = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

template <class T>
T taken(T& list) {
  const Lock lock(mutex);
  return std::exchange(list, T{});
}

} // namespace

void* reachable(void* address) {
  if (address == nullptr) {
    return nullptr;
  }
  return arena().of_kernels + (static_cast<char*>(address) - arena().of_tensors);
}

c10::Stream current_stream(c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::UNSAFE, {kType, device}, streams_of_thread[device]);
}

Work::Work(std::string name, c10::Stream stream) : name_(std::move(name)), stream_(stream) {
  const Lock lock(mutex);
  Clock& clock = seen[key_of(stream)];
  join(clock, seen_by_host);
  ++clock[key_of(stream)];
}

void Work::reads(const c10::TensorImpl& tensor) {
  const Lock lock(mutex);
  if (Block* block = block_of(tensor)) {
    const Clock& clock = seen[key_of(stream_)];
    if (const StreamKey* other = ahead_of(clock, block->written)) {
      hazards.push_back(
          name_ + " on " + show(key_of(stream_)) + " reads what " + show(*other) + " writes");
    }
    block->read[key_of(stream_)] = clock.at(key_of(stream_));
  }
}

void Work::writes(const c10::TensorImpl& tensor) {
  const Lock lock(mutex);
  if (Block* block = block_of(tensor)) {
    const Clock& clock = seen[key_of(stream_)];
    for (const Clock* work : {&block->written, &block->read}) {
      if (const StreamKey* other = ahead_of(clock, *work)) {
        hazards.push_back(
            name_ + " on " + show(key_of(stream_)) + " writes to what " + show(*other) + " uses");
      }
    }
    block->read.clear();
    block->written = {{key_of(stream_), clock.at(key_of(stream_))}};
  }
}

void wait_for(c10::Stream waiting, c10::Stream other) {
  const Lock lock(mutex);
  join(seen[key_of(waiting)], seen[key_of(other)]);
}

void synchronize(const std::string& why, c10::Stream stream) {
  const Lock lock(mutex);
  count_waiting(why);
  join(seen_by_host, seen[key_of(stream)]);
}

void note_launch(const std::string& name, c10::Stream stream) {
  const Lock lock(mutex);
  note(launched, name + " on " + std::to_string(stream.id()));
}

std::vector<std::string> launches() {
  return taken(launched);
}

TORCH_LIBRARY(second, library) {
  library.def("launches() -> str[]", &launches);
  library.def("hazards() -> str[]", [] { return taken(hazards); });
  library.def("waits() -> str[]", [] { return taken(waits); });
  library.def("forbid_synchronizing(bool forbidden) -> ()", [](bool forbidden) {
    is_forbidden = forbidden;
  });
}

} // namespace second
