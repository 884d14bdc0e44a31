// The properties that two calls of a compiled function must share to run the same captured graph.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "python/tree.h"

namespace torchlayers {

// Settings of torch that determine which kernels run, or which operators a function calls: one or a
// few bits each.
uint32_t torch_settings();

// Thread-local state around a call that affects what a function does.
struct CallModes {
  static CallModes of_thread();
  bool operator==(const CallModes&) const = default;

  bool grad, inference, is_deterministic;
  uint32_t settings;
  caffe2::TypeMeta dtype;
  c10::DispatchKeySet autocast;
  at::ScalarType autocast_on_host, autocast_on_accelerator;
  std::optional<c10::Device> device; // the default device
};

// The metadata of a plain tensor.
class Like {
 public:
  explicit Like(const at::Tensor& tensor);
  bool fits(const at::Tensor& tensor) const;

  // Leaves numbers open, counted over the sizes and then the strides: tensors differ in them.
  void leave_open(const std::vector<size_t>& places);
  // Adds a tensor's numbers in the open places.
  void add_open(const at::Tensor& tensor, std::vector<int64_t>& numbers) const;

  // Whether this class covers all relevant metadata of the tensor.
  static bool may_be_told(const at::Tensor& tensor);

 private:
  c10::DispatchKeySet keys_; // including layout, conjugation and inference mode
  caffe2::TypeMeta dtype_;
  c10::Device device_;
  bool requires_grad_;
  c10::SmallVector<int64_t, 5> sizes_, strides_;
  std::vector<size_t> open_;

  bool has_layout(const at::TensorImpl& tensor) const;
};

// Compares values that are not tensors. Values of different types are never the same: 1, 1.0 and
// True; nan equals nan, and 0.0 differs from -0.0.
bool is_same_constant(PyObject* one, PyObject* other);

// The signature of a call, and of the tensors that the function captures.
class Signature {
 public:
  // Nothing if C++ can't determine it: there is a tensor of another kind, or a container that
  // torch.utils._pytree flattens. `is_static`: the positional arguments that are constants as a
  // whole. `open`: for each tensor, of arguments and then captured, the numbers that are left open;
  // or empty.
  static std::optional<Signature> of(
      const pybind11::tuple& args,
      const pybind11::dict& kwargs,
      std::vector<bool> is_static,
      const std::vector<at::Tensor>& captured,
      const std::vector<std::vector<size_t>>& open);

  // Whether a call by Python's calling convention has this signature; `leaves` is filled with
  // borrowed references.
  bool fits(
      const CallModes& modes,
      PyObject* const* args,
      Py_ssize_t count,
      PyObject* names,
      c10::SmallVectorImpl<PyObject*>& leaves) const;

  // Whether the captured tensors are alike.
  bool fits(const std::vector<at::Tensor>& captured) const;

  // The sizes and strides of a call that are left open.
  std::vector<int64_t> open_numbers(
      const c10::SmallVectorImpl<PyObject*>& leaves, const std::vector<at::Tensor>& captured) const;

  int visit(visitproc visit, void* arg) const;

 private:
  bool are_alike(PyObject* one, size_t leaf) const;

  CallModes modes_;
  std::vector<bool> is_static_;
  size_t num_args_ = 0;
  Leaves names_;
  Structure structure_; // of a tuple of the arguments that are not static, and the keyword ones
  // For each leaf, one of the two.
  struct Leaf {
    std::optional<Like> like;
    pybind11::object constant;
  };
  std::vector<Leaf> leaves_;
  Leaves static_;
  std::vector<Like> captured_;
};

} // namespace torchlayers
