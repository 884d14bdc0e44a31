// The saved-tensor hooks of torchlayers/remat/checkpoint.py.
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <vector>

#include "core/patches.h"
#include "core/stack.h"
#include "python/bindings.h"
#include "python/hooks/saved_hooks.h"
#include "python/tree.h"
#include "values/saved_version.h"
#include "values/wrapper_chain.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

// The metadata that a recomputed tensor must have.
struct Likeness {
  explicit Likeness(const at::Tensor& tensor)
      : sizes(tensor.sym_sizes()), dtype(tensor.scalar_type()), device(tensor.device()) {}

  bool fit(const at::Tensor& tensor) const {
    return tensor.sym_sizes() == c10::SymIntArrayRef(sizes) && tensor.scalar_type() == dtype &&
           tensor.device() == device;
  }
  py::tuple to_python() const {
    py::list shape;
    for (const auto& size : sizes) {
      shape.append(py::cast(size));
    }
    return py::make_tuple(py::tuple(shape), py::cast(dtype), py::cast(device));
  }

  c10::SymDimVector sizes;
  at::ScalarType dtype;
  at::Device device;
};

class Region;

// A tensor that the recomputation has saved, without its graph.
struct Recomputed {
  at::Tensor value;
  SavedVersion version;
};

// The place of a saved tensor. It has a value after the tensor is recomputed, until it is read.
struct Place : Kept {
  Place(std::shared_ptr<Region> region, size_t stream, const at::Tensor& tensor)
      : region(std::move(region)), stream(stream), looks(tensor) {}

  std::shared_ptr<Region> region;
  size_t stream;
  Likeness looks;
  std::optional<Recomputed> recomputed;
};

// The tensors that each level saves form a stream, and so do the arguments of nested regions.
size_t stream_of(int64_t saved_by) {
  static_assert(SavedHooks::kArguments == -1);
  return static_cast<size_t>(saved_by + 1);
}
constexpr size_t kStreamOfArguments = 0;

// Whether the saving level belongs to a transform that the checkpointed function calls.
bool is_inside(size_t depth) {
  return mirror().size() > depth;
}

// NOTE [Saved before it is drawn]
// A recomputation stops where the last tensor is saved, before the operator that saves it runs.
// rrelu draws its slopes into a tensor that autograd has already saved, which would be returned
// uninitialized. So the recomputation goes on until the next tensor is saved, or to the end.
class RreluWatch {
 public:
  RreluWatch()
      : handle_(
            at::addThreadLocalCallback(
                at::RecordFunctionCallback(&begin, &end).scopes({at::RecordScope::FUNCTION}))) {}
  RreluWatch(const RreluWatch&) = delete;
  RreluWatch& operator=(const RreluWatch&) = delete;
  ~RreluWatch() {
    at::removeCallback(handle_);
  }

  static bool is_running() {
    return running > 0;
  }

 private:
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    running += is_rrelu(function);
    return nullptr;
  }
  static void end(const at::RecordFunction& function, at::ObserverContext*) {
    running -= is_rrelu(function);
  }
  static bool is_rrelu(const at::RecordFunction& function) {
    return std::string_view(function.name()).starts_with("aten::rrelu_with_noise");
  }

  static thread_local int running;
  at::CallbackHandle handle_;
};

thread_local int RreluWatch::running = 0;

using Places = std::vector<std::weak_ptr<Place>>;

// One call of a checkpointed function: the tensors that it saves are replaced by places.
class Region : public SavedHooks, public std::enable_shared_from_this<Region> {
 public:
  explicit Region(py::object call)
      : SavedHooks(/*keeps_tangents=*/false), call_(std::move(call)), depth_(mirror().size()) {}

  std::shared_ptr<Kept> pack(at::Tensor& tensor, int64_t saved_by) override {
    if (is_inside(depth_)) {
      tensor = without_graphs(tensor);
      return nullptr;
    }
    const size_t stream = stream_of(saved_by);
    auto place = std::make_shared<Place>(shared_from_this(), stream, tensor);
    const std::lock_guard lock(mutex_);
    if (places_.size() <= stream) {
      places_.resize(stream + 1);
    }
    places_[stream].push_back(place);
    return place;
  }

  at::Tensor unpack(Kept& kept, const StackCopy& stack) override {
    auto& place = static_cast<Place&>(kept);
    for (;;) { // another thread may have taken it meanwhile
      if (const auto recomputed = take(place)) {
        check_is_intact(recomputed->version);
        return recomputed->value;
      }
      recompute(place.stream, stack);
    }
  }

  void fill(Place& place, Recomputed recomputed) {
    if (!place.looks.fit(recomputed.value)) {
      const py::gil_scoped_acquire gil;
      const Likeness again(recomputed.value);
      call_.attr("refuse_other")(place.looks.to_python(), again.to_python());
    }
    const std::lock_guard lock(mutex_);
    place.recomputed = std::move(recomputed);
  }

  size_t depth() const {
    return depth_;
  }

 private:
  std::optional<Recomputed> take(Place& place) {
    const std::lock_guard lock(mutex_);
    return std::exchange(place.recomputed, std::nullopt);
  }

  void check_is_intact(const SavedVersion& version) const {
    if (!version.is_intact()) {
      const py::gil_scoped_acquire gil;
      call_.attr("refuse_modified")(version.saved(), version.current());
    }
  }

  Places places_of(size_t stream) {
    const std::lock_guard lock(mutex_);
    return stream < places_.size() ? places_[stream] : Places();
  }

  void recompute(size_t stream, const StackCopy& stack);

  py::object call_; // the Python object
  size_t depth_;
  std::mutex mutex_;
  std::vector<Places> places_; // by stream
};

// Active during recomputation: fills the places of one stream, and those of the arguments.
class Filling : public SavedHooks {
 public:
  struct Wanted {
    size_t stream;
    std::vector<std::shared_ptr<Place>> places; // null where it will not be read any more
    size_t count = 0;                           // of the tensors saved so far

    bool is_there() const {
      return count >= places.size();
    }
  };

  Filling(std::shared_ptr<Region> region, size_t stream, const Places& places, const Places& given)
      : SavedHooks(/*keeps_tangents=*/false),
        region_(std::move(region)),
        wanted_{Wanted{stream, locked(places)}, Wanted{kStreamOfArguments, locked(given)}} {}

  std::shared_ptr<Kept> pack(at::Tensor& tensor, int64_t saved_by) override {
    const at::Tensor saved = std::exchange(tensor, without_graphs(tensor));
    if (is_inside(region_->depth())) {
      return nullptr;
    }
    if (stops_at_next_) {
      stop();
    }
    const auto wanted = std::ranges::find(
        wanted_, stream_of(saved_by), [](const auto& each) { return each.stream; });
    if (wanted == wanted_.end()) {
      return nullptr;
    }
    const size_t i = wanted->count++;
    if (i < wanted->places.size()) {
      if (const auto place = std::exchange(wanted->places[i], nullptr)) {
        region_->fill(*place, Recomputed{tensor, SavedVersion(saved)});
      }
    }
    if (is_complete()) {
      if (!RreluWatch::is_running()) { // NOTE [Saved before it is drawn]
        stop();
      }
      stops_at_next_ = true;
    }
    return nullptr;
  }

  at::Tensor unpack(Kept&, const StackCopy&) override {
    TORCH_INTERNAL_ASSERT(false, "it keeps nothing");
  }

  bool is_complete() const {
    return std::ranges::all_of(wanted_, [](const auto& each) { return each.is_there(); });
  }
  bool has_stopped() const {
    return has_stopped_;
  }
  size_t saved_at_first() const {
    return wanted_[0].places.size();
  }
  size_t saved_again() const {
    return wanted_[0].count;
  }

 private:
  static std::vector<std::shared_ptr<Place>> locked(const Places& places) {
    std::vector<std::shared_ptr<Place>> found;
    found.reserve(places.size());
    for (const auto& place : places) {
      found.push_back(place.lock());
    }
    return found;
  }

  [[noreturn]] void stop() {
    has_stopped_ = true;
    const py::gil_scoped_acquire gil;
    PyErr_SetNone(imported("torchlayers.remat.checkpoint", "StopRecomputation").ptr());
    python_error error;
    error.persist();
    throw error;
  }

  std::shared_ptr<Region> region_;
  std::array<Wanted, 2> wanted_;
  bool stops_at_next_ = false;
  bool has_stopped_ = false;
};

void Region::recompute(size_t stream, const StackCopy& stack) {
  const py::gil_scoped_acquire gil;
  const Patched patched;
  const OnSavedStack earlier(stack);
  const modules::PutInAgain again(in_modules());
  const Places given = stream == kStreamOfArguments ? Places() : places_of(kStreamOfArguments);
  const auto filling = make_hooks<Filling>(shared_from_this(), stream, places_of(stream), given);
  const RreluWatch watch;
  call_.attr("recompute")(filling);
}

} // namespace

void bind_checkpoint(py::module_& m) {
  py::class_<SavedHooks, std::shared_ptr<SavedHooks>>(
      m, "SavedHooks", "Saved-tensor hooks of torchlayers.")
      .def("on", [](const std::shared_ptr<SavedHooks>& self) { return HooksOn(self); });
  py::class_<Region, SavedHooks, std::shared_ptr<Region>>(
      m, "Region", "The saved-tensor hooks of one call of a checkpointed function.")
      .def(py::init([](py::object call) { return make_hooks<Region>(std::move(call)); }));
  py::class_<Filling, SavedHooks, std::shared_ptr<Filling>>(
      m, "Filling", "The saved-tensor hooks during its recomputation.")
      .def_property_readonly("is_complete", &Filling::is_complete)
      .def_property_readonly("has_stopped", &Filling::has_stopped)
      .def_property_readonly("saved_at_first", &Filling::saved_at_first)
      .def_property_readonly("saved_again", &Filling::saved_again);
}

} // namespace torchlayers
