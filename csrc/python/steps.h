// Steps of torch.func's transforms that a package has replaced. NOTE [Replaced steps] in
// torchlayers/steps.py.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchlayers {

enum class Transform : uint8_t { vmap, chunks, grad, jvp, functionalize };
constexpr size_t kTransforms = 5;

// Whether one of the functions that torch.func's namesake consists of is not torch's own.
bool has_replaced_steps(Transform transform);

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

// watch_steps(transform, functions), and replaced_steps(transform).
void bind_steps(pybind11::module_& m);

} // namespace torchlayers
