// Steps of torch.func's transforms that a package has replaced. NOTE [Replaced steps] in
// torchlayers/transforms/patched_torch_func.py.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchlayers {

enum class Transform : uint8_t { vmap, chunks, grad, jvp, functionalize };

// The steps of a transform that a package has replaced, as of now: raises where ours can't do
// without one of them.
class Replaced {
 public:
  explicit Replaced(Transform transform);

  explicit operator bool() const {
    return static_cast<bool>(steps_);
  }
  // What to call in place of our own step, by the name of torch.func's; null where that is torch's.
  pybind11::object operator[](const char* step) const;

 private:
  pybind11::object steps_;
};

// While it lives, what is written to a module's names replaces no step.
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
