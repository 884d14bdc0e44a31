// Steps of torch.func's transforms that a package has replaced. NOTE [Replaced steps] in
// torchlayers/transforms/patched_torch_func.py.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchlayers {

enum class Transform : uint8_t { vmap, chunks, grad, jvp, functionalize };

// The currently replaced steps of a transform: raises if our implementation can't work with a
// replacement.
class Replaced {
 public:
  explicit Replaced(Transform transform);

  explicit operator bool() const {
    return static_cast<bool>(steps_);
  }
  // The replacement for our own step, by the name of torch.func's; null if that is unchanged.
  pybind11::object operator[](const char* step) const;

 private:
  pybind11::object steps_;
};

// While an instance is alive, writes to a module's names do not count as replaced steps.
class WritesNoStep {
 public:
  explicit WritesNoStep(const pybind11::dict& names);
  ~WritesNoStep();
  WritesNoStep(const WritesNoStep&) = delete;
  WritesNoStep& operator=(const WritesNoStep&) = delete;

 private:
  const pybind11::dict& names_;
  bool was_changed_;
};

} // namespace torchlayers
