#include "python/compiled/signature.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/device.h"
#include "core/keys.h"
#include "python/function_modes.h"

namespace torchlayers {

namespace py = pybind11;

namespace {

// Compares the hashes, as a dict does before it compares: objects that hold tensors hash by
// identity, while == compares values.
bool have_same_hash(PyObject* one, PyObject* other) {
  const auto a = PyObject_Hash(one), b = PyObject_Hash(other);
  if (a == -1 || b == -1) {
    PyErr_Clear(); // slices can't be hashed before Python 3.12
    return true;
  }
  return a == b;
}

} // namespace

uint32_t torch_settings() {
  const auto& context = at::globalContext();
  const auto matmul = [&context](at::Float32Backend backend) {
    return static_cast<uint32_t>(context.float32Precision(backend, at::Float32Op::MATMUL));
  };
  uint32_t settings = matmul(at::Float32Backend::CUDA) << 4 | matmul(at::Float32Backend::MKLDNN);
  for (const bool setting :
       {context.deterministicAlgorithmsWarnOnly(),
        context.deterministicFillUninitializedMemory(),
        context.deterministicCuDNN(),
        context.benchmarkCuDNN(),
        context.userEnabledCuDNN(),
        context.deterministicMkldnn(),
        context.userEnabledMkldnn(),
        context.userEnabledFlashSDP(),
        context.userEnabledMemEfficientSDP(),
        context.userEnabledMathSDP(),
        context.userEnabledCuDNNSDP(),
        torch::autograd::AnomalyMode::is_enabled(),
        torch::autograd::AnomalyMode::should_check_nan()}) {
    settings = settings << 1 | (setting ? 1 : 0);
  }
  return settings;
}

CallModes CallModes::of_thread() {
  const auto& state = c10::AutogradState::get_tls_state();
  CallModes modes{
      state.get_grad_mode(),
      state.get_inference_mode(),
      at::globalContext().deterministicAlgorithms(),
      torch_settings(),
      c10::get_default_dtype(),
      kAutocastKeys - thread_keys().excluded(),
      at::ScalarType::Undefined,
      at::ScalarType::Undefined,
      default_device()};
  if (C10_UNLIKELY(autocast_is_on())) {
    modes.autocast_on_host = at::autocast::get_autocast_dtype(kHost);
    modes.autocast_on_accelerator = at::autocast::get_autocast_dtype(accelerator());
  }
  return modes;
}

Like::Like(const at::Tensor& tensor)
    : keys_(tensor.key_set()),
      dtype_(tensor.dtype()),
      device_(tensor.device()),
      requires_grad_(tensor.requires_grad()),
      sizes_(tensor.sizes()),
      strides_(tensor.strides()) {}

bool Like::may_be_told(const at::Tensor& tensor) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(
      tensor.unsafeGetTensorImpl()->autograd_meta());
  const auto keys = tensor.key_set() - kAutocastKeys;
  return (are_keys_of_plain_inference(keys) || are_keys_of_plain(keys)) &&
         (meta == nullptr || meta->fw_grad_ == nullptr);
}

bool Like::fits(const at::Tensor& tensor) const {
  const auto& value = *tensor.unsafeGetTensorImpl();
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(value.autograd_meta());
  return value.key_set() == keys_ && value.dtype() == dtype_ && value.device() == device_ &&
         ((value.sizes() == at::IntArrayRef(sizes_) &&
           value.strides() == at::IntArrayRef(strides_)) ||
          (C10_UNLIKELY(!open_.empty()) && has_layout(value))) &&
         (meta == nullptr ? !requires_grad_
                          : meta->fw_grad_ == nullptr && value.requires_grad() == requires_grad_);
}

void Like::leave_open(const std::vector<size_t>& places) {
  open_ = places;
}

bool Like::has_layout(const at::TensorImpl& tensor) const {
  const auto dims = sizes_.size();
  if (tensor.sizes().size() != dims) {
    return false;
  }
  for (size_t i = 0; i < dims; ++i) {
    const auto is_open = [&](size_t place) {
      return std::find(open_.begin(), open_.end(), place) != open_.end();
    };
    if ((tensor.sizes()[i] != sizes_[i] && !is_open(i)) ||
        (tensor.strides()[i] != strides_[i] && !is_open(dims + i))) {
      return false;
    }
  }
  return true;
}

void Like::add_open(const at::Tensor& tensor, std::vector<int64_t>& numbers) const {
  const auto dims = sizes_.size();
  for (const size_t place : open_) {
    numbers.push_back(place < dims ? tensor.size(place) : tensor.stride(place - dims));
  }
}

bool is_same_constant(PyObject* one, PyObject* other) {
  if (one == other) {
    return true;
  }
  if (Py_TYPE(one) != Py_TYPE(other)) {
    return false;
  }
  if (PyFloat_Check(one)) { // also NumPy's double-precision numbers
    const double a = PyFloat_AS_DOUBLE(one), b = PyFloat_AS_DOUBLE(other);
    return std::memcmp(&a, &b, sizeof a) == 0;
  }
  if (PyComplex_CheckExact(one)) {
    const Py_complex a = PyComplex_AsCComplex(one), b = PyComplex_AsCComplex(other);
    return std::memcmp(&a, &b, sizeof a) == 0;
  }
  if (PyTuple_Check(one) && Py_TYPE(one)->tp_richcompare == PyTuple_Type.tp_richcompare) {
    if (PyTuple_GET_SIZE(one) != PyTuple_GET_SIZE(other)) {
      return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(one); ++i) {
      if (!is_same_constant(PyTuple_GET_ITEM(one, i), PyTuple_GET_ITEM(other, i))) {
        return false;
      }
    }
    return true;
  }
  if (!PyUnicode_CheckExact(one) && !PyLong_CheckExact(one) && !have_same_hash(one, other)) {
    return false;
  }
  const int same = PyObject_RichCompareBool(one, other, Py_EQ);
  if (same < 0) {
    throw py::error_already_set();
  }
  return same == 1;
}

std::optional<Signature> Signature::of(
    const py::tuple& args,
    const py::dict& kwargs,
    std::vector<bool> is_static,
    const std::vector<at::Tensor>& captured,
    const std::vector<std::vector<size_t>>& open) {
  Signature signature;
  signature.modes_ = CallModes::of_thread();
  signature.num_args_ = args.size();
  is_static.resize(args.size());
  const auto count = std::count(is_static.begin(), is_static.end(), false);
  Tree tree = Tree::tuple(count + std::ssize(kwargs));
  for (size_t i = 0; i < args.size(); ++i) {
    const py::object arg = args[i];
    if (is_static[i]) {
      signature.static_.push_back(arg);
    } else if (!tree.add(arg.ptr())) {
      return std::nullopt;
    }
  }
  for (const auto& [name, value] : kwargs) {
    signature.names_.push_back(py::reinterpret_borrow<py::object>(name));
    if (!tree.add(value.ptr())) {
      return std::nullopt;
    }
  }
  signature.is_static_ = std::move(is_static);
  signature.structure_ = std::move(tree.structure);
  const auto told = [](const at::Tensor& tensor) { return Like::may_be_told(tensor); };
  for (auto& leaf : tree.leaves) {
    if (THPVariable_CheckExact(leaf.ptr()) && told(tensor_of(leaf))) {
      signature.leaves_.push_back({Like(tensor_of(leaf)), py::object()});
    } else if (!is_tensor(leaf)) {
      signature.leaves_.push_back({std::nullopt, std::move(leaf)});
    } else {
      return std::nullopt;
    }
  }
  if (!std::all_of(captured.begin(), captured.end(), told)) {
    return std::nullopt;
  }
  for (const auto& tensor : captured) {
    signature.captured_.emplace_back(tensor);
  }
  size_t count_open = 0;
  for (auto& leaf : signature.leaves_) {
    if (leaf.like && count_open < open.size()) {
      leaf.like->leave_open(open[count_open++]);
    }
  }
  for (size_t i = 0; i < captured.size() && count_open < open.size(); ++i) {
    signature.captured_[i].leave_open(open[count_open++]);
  }
  return signature;
}

bool Signature::fits(
    const CallModes& modes,
    PyObject* const* args,
    Py_ssize_t count,
    PyObject* names,
    c10::SmallVectorImpl<PyObject*>& leaves) const {
  const Py_ssize_t num_names = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  if (static_cast<size_t>(count) != num_args_ || num_names != std::ssize(names_) ||
      !(modes == modes_)) {
    return false;
  }
  for (Py_ssize_t i = 0; i < num_names; ++i) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    if (name != names_[i].ptr() && PyUnicode_Compare(name, names_[i].ptr()) != 0) {
      return false;
    }
  }
  Structure::Walk walk(structure_);
  size_t next_static = 0;
  for (Py_ssize_t i = 0; i < count + num_names; ++i) {
    if (i < count && is_static_[i]) {
      if (!is_same_constant(args[i], static_[next_static++].ptr())) {
        return false;
      }
    } else if (!walk.take(args[i], leaves)) {
      return false;
    }
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!are_alike(leaves[i], i)) {
      return false;
    }
  }
  return true;
}

bool Signature::are_alike(PyObject* object, size_t leaf) const {
  const auto& expected = leaves_[leaf];
  return expected.like ? THPVariable_CheckExact(object) && expected.like->fits(tensor_of(object))
                       : is_same_constant(object, expected.constant.ptr());
}

bool Signature::fits(const std::vector<at::Tensor>& captured) const {
  for (size_t i = 0; i < captured.size(); ++i) {
    if (!captured_[i].fits(captured[i])) {
      return false;
    }
  }
  return true;
}

std::vector<int64_t> Signature::open_numbers(
    const c10::SmallVectorImpl<PyObject*>& leaves, const std::vector<at::Tensor>& captured) const {
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (leaves_[i].like) {
      leaves_[i].like->add_open(tensor_of(leaves[i]), numbers);
    }
  }
  for (size_t i = 0; i < captured.size(); ++i) {
    captured_[i].add_open(captured[i], numbers);
  }
  return numbers;
}

int Signature::visit(visitproc visit, void* arg) const {
  for (const auto& leaf : leaves_) {
    Py_VISIT(leaf.constant.ptr());
  }
  for (const auto& value : static_) {
    Py_VISIT(value.ptr());
  }
  return structure_.visit(visit, arg);
}

} // namespace torchlayers
