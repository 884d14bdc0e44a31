// Tuples, lists and dicts of tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <utility>
#include <vector>

namespace torchlayers {

using Tensors = std::vector<at::Tensor>;

// One of torch's own class: a subclass has methods of its own.
bool is_plain(pybind11::handle object);

// A tensor, None, a number or a string, or tuples, lists and dicts of these, however deep: the
// pytrees that need nothing of torch.utils._pytree. Walking through one runs no Python code.
class Nest {
 public:
  // Nothing where the object holds what is none of these.
  static std::optional<Nest> of(pybind11::handle object);

  const Tensors& tensors() const {
    return tensors_;
  }
  bool has_only_tensors() const {
    return has_only_tensors_;
  }
  // The same nest of other tensors, as many.
  pybind11::object with(const Tensors& tensors) const;

  // One that nobody else can change.
  Nest copy() const;

  bool is_shaped_as(const Nest& other) const;

 private:
  explicit Nest(pybind11::handle object)
      : object_(pybind11::reinterpret_borrow<pybind11::object>(object)) {}
  bool collect(PyObject* object);

  pybind11::object object_;
  Tensors tensors_;
  bool has_only_tensors_ = true;
};

} // namespace torchlayers
