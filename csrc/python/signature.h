// What two calls of a compiled function must have in common to run the same recording.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "python/tree.h"

namespace torchlayers {

// Settings of torch that decide which kernels run, or which operators a function comes to: a bit
// or a few each.
uint32_t torch_settings();

// What holds on a thread around a call, and changes what a function does.
struct CallModes {
  static CallModes of_thread();
  bool operator==(const CallModes&) const = default;

  bool grad, inference, is_deterministic;
  uint32_t settings;
  caffe2::TypeMeta dtype;
  c10::DispatchKeySet autocast;
  at::ScalarType autocast_on_host, autocast_on_accelerator;
  std::optional<c10::Device> device; // the default one
};

// All of a plain tensor but its numbers.
class Like {
 public:
  explicit Like(const at::Tensor& tensor);
  bool fits(const at::Tensor& tensor) const;

  // Whether there is nothing about the tensor that is not told here.
  static bool may_be_told(const at::Tensor& tensor);

 private:
  c10::DispatchKeySet keys_; // its layout too, whether it is conjugated, whether it is inference's
  caffe2::TypeMeta dtype_;
  c10::Device device_;
  bool requires_grad_;
  c10::SmallVector<int64_t, 5> sizes_, strides_;
};

// A value that is no tensor. Values of two types are never the same: 1, 1.0 and True; nan is nan,
// and 0.0 is not -0.0.
bool is_same_constant(PyObject* one, PyObject* other);

// A call's signature, and that of the tensors that the function has captured and of the modules
// that it calls.
class Signature {
 public:
  // Nothing where C++ can't tell it: there is a tensor of another kind, or a container that
  // torch.utils._pytree takes apart. `is_static`: the positional arguments that are constants as a
  // whole. `modules`: what they hold, as torchlayers/compiler/capture/module_guards.py tells it.
  static std::optional<Signature> of(
      const pybind11::tuple& args,
      const pybind11::dict& kwargs,
      std::vector<bool> is_static,
      const std::vector<at::Tensor>& captured,
      const pybind11::list& modules);

  // Whether a call as Python makes it has this signature; its leaves are borrowed.
  bool fits(
      const CallModes& modes,
      PyObject* const* args,
      Py_ssize_t count,
      PyObject* names,
      c10::SmallVectorImpl<PyObject*>& leaves) const;

  // Whether the captured tensors are what they were, and modules hold what they held.
  bool fits(const std::vector<at::Tensor>& captured) const;

  int visit(visitproc visit, void* arg) const;

 private:
  bool are_alike(PyObject* one, size_t leaf) const;

  CallModes modes_;
  std::vector<bool> is_static_;
  size_t num_args_ = 0;
  Leaves names_;
  Structure structure_; // of a tuple of the arguments that are not static, and those by name
  // For each leaf: one of the two.
  struct Leaf {
    std::optional<Like> like;
    pybind11::object constant;
  };
  std::vector<Leaf> leaves_;
  Leaves static_;
  std::vector<Like> captured_;
  // A dict of a module's, a key, and what was there; without a key, how many there were.
  struct Held {
    bool is() const;

    pybind11::dict table;
    pybind11::object key, value;
    Py_ssize_t count;
  };
  std::vector<Held> modules_;
};

} // namespace torchlayers
