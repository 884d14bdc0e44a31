// Saves and compares the state of the CPU's random generator, without creating a tensor; and how
// draws are recorded.
#include <ATen/CPUGeneratorImpl.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "layers/vmap/draws.h"
#include "python/bindings.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

at::CPUGeneratorImpl& generator() {
  return *at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

class RandomState {
 public:
  RandomState() {
    const std::lock_guard lock(generator().mutex_);
    state_ = generator().clone();
  }

  // Whether nothing has been drawn since this was created.
  bool is_now() const {
    at::CPUGeneratorImpl& now = generator();
    const std::lock_guard lock(now.mutex_);
    const auto one = now.engine().data(), other = state_->engine().data();
    return one.seed_ == other.seed_ && one.left_ == other.left_ && one.next_ == other.next_ &&
           one.seeded_ == other.seeded_ && one.state_ == other.state_ &&
           now.next_float_normal_sample() == state_->next_float_normal_sample() &&
           now.next_double_normal_sample() == state_->next_double_normal_sample();
  }

  // Resets the generator, so that the same numbers are drawn again.
  void restore() const {
    at::CPUGeneratorImpl& now = generator();
    const std::lock_guard lock(now.mutex_);
    now.set_engine(state_->engine());
    now.set_next_float_normal_sample(state_->next_float_normal_sample());
    now.set_next_double_normal_sample(state_->next_double_normal_sample());
  }

 private:
  std::shared_ptr<at::CPUGeneratorImpl> state_;
};

} // namespace

void bind_random_state(py::module_& m) {
  py::class_<RandomState>(
      m, "RandomState", "The state of the CPU's random generator at construction.")
      .def(py::init<>())
      .def("is_now", &RandomState::is_now)
      .def("restore", &RandomState::restore);
  m.def(
      "set_draws_are_constants",
      [](bool are_constants) { return std::exchange(draws_are_constants(), are_constants); },
      "Sets whether what is drawn becomes a constant of the graph that is recorded; returns "
      "whether "
      "it did before.");
}

} // namespace torchlayers
