// y[t], where t differs between samples. NOTE [Subscripts].
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <numeric>

#include "core/aten_functions.h"
#include "layers/transforms.h"
#include "python/function_modes.h"
#include "python/patches/indexing.h"
#include "python/tree.h"
#include "values/functional.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

namespace py = pybind11;
using at::Tensor;

// Whether the tensor is batched at any level, also below a functionalize.
bool is_of_samples(const Tensor& tensor) {
  const Tensor found = without_functional(shown(tensor));
  if (at::functorch::maybeGetBatchedImpl(found) != nullptr) {
    return true;
  }
  const auto* wrapper = wrapper_of(found);
  return wrapper != nullptr && is_of_samples(wrapper->value());
}

bool is_flag(const Tensor& index) {
  return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
}

} // namespace

bool any_number_of_samples(Indices indices) {
  return std::any_of(indices.begin(), indices.end(), [](PyObject* index) {
    if (!is_tensor(index) || overrides_functions(index)) {
      return false;
    }
    const Tensor& tensor = THPVariable_Unpack(index);
    return tensor.dim() == 0 && at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true) &&
           is_of_samples(tensor);
  });
}

Pick::Pick(PyObject* y, Indices indices, binaryfunc torchs_get) : y_(y), torchs_get_(torchs_get) {
  std::vector<Index> all;
  int64_t taken = 0;
  for (PyObject* index : indices) {
    all.push_back(look_at(index));
    taken += all.back().dims;
  }
  for (Index& index : all) {
    if (index.basic.ptr() == Py_Ellipsis) {
      index.left = tensor_of(y).dim() - taken;
    }
    add(index);
  }
}

Pick::Index Pick::look_at(PyObject* index) {
  const auto as_it_is = py::reinterpret_borrow<py::object>(index);
  if (index == Py_None) {
    return {as_it_is, 0, 1};
  }
  if (index == Py_Ellipsis) {
    return {as_it_is};
  }
  if (PySlice_Check(index)) {
    return {as_it_is, 1, 1};
  }
  // NumPy arrays count as numbers for Python, and as lists for torch.
  const bool is_number_of_python =
      PyIndex_Check(index) && !PyBool_Check(index) && !PySequence_Check(index);
  if (is_number_of_python && !is_tensor(index)) {
    return {as_it_is, 1, 0};
  }
  const Tensor tensor =
      is_tensor(index) ? tensor_of(index) : imported("torch", "as_tensor")(as_it_is).cast<Tensor>();
  if (tensor.dim() == 0 && is_flag(tensor)) {
    return look_at_flag(tensor);
  }
  const py::object all = py::slice(py::none(), py::none(), py::none());
  const int64_t dims = is_flag(tensor) ? tensor.dim() : 1;
  const bool is_number = tensor.dim() == 0;
  return {
      all,
      dims,
      dims,
      is_flag(tensor) ? tensor : tensor.to(at::kLong, /*non_blocking=*/false, /*copy=*/is_number),
      is_number};
}

// A boolean indexes a new dimension of size one, selecting its element or none. One that differs
// between samples always selects it, and determines later which samples are written.
Pick::Index Pick::look_at_flag(const Tensor& flag) {
  if (!is_of_samples(flag)) {
    return {py::none(), 0, 1, flag.to(at::kBool).reshape({1})};
  }
  flags_.push_back(flag.to(at::kBool, /*non_blocking=*/false, /*copy=*/true));
  return {py::none(), 0, 1, at::zeros({1}, flag.options().dtype(at::kLong))};
}

void Pick::add(const Index& index) {
  for (int64_t i = 0; i < (index.picks.defined() ? index.left : 1); ++i) {
    basic_.append(index.basic);
  }
  if (index.picks.defined()) {
    (index.is_number ? numbers_ : others_).emplace_back(rank_, index.picks);
  }
  rank_ += index.left;
}

Tensor Pick::view() const {
  const auto view = py::reinterpret_steal<py::object>(torchs_get_(y_, py::tuple(basic_).ptr()));
  if (!view) {
    throw py::error_already_set();
  }
  return tensor_of(view);
}

// The view's dimensions, with those that numbers index moved next to the first that another tensor
// indexes: torch applies numbers before other indices.
std::vector<int64_t> Pick::order(int64_t rank) const {
  std::vector<int64_t> dims(rank);
  std::iota(dims.begin(), dims.end(), 0);
  if (others_.empty()) {
    return dims;
  }
  for (const auto& [dim, number] : numbers_) {
    dims.erase(std::find(dims.begin(), dims.end(), dim));
  }
  auto at = std::find(dims.begin(), dims.end(), others_.front().first);
  for (const auto& [dim, number] : numbers_) {
    at = dims.insert(at, dim) + 1;
  }
  return dims;
}

Tensor Pick::ordered(const Tensor& view) const {
  return others_.empty() ? view : view.permute(order(view.dim()));
}

const Tensor* Pick::index_at(int64_t dim) const {
  for (const Picking* picking : {&numbers_, &others_}) {
    for (const auto& [at, index] : *picking) {
      if (at == dim) {
        return &index;
      }
    }
  }
  return nullptr;
}

c10::List<std::optional<Tensor>> Pick::indices_of(const Tensor& view) const {
  c10::List<std::optional<Tensor>> indices;
  const std::vector<int64_t> dims = order(view.dim());
  for (size_t i = 0; i < dims.size();) {
    const Tensor* index = index_at(dims[i]);
    indices.push_back(index != nullptr ? std::optional(*index) : std::nullopt);
    i += index != nullptr && is_flag(*index) ? static_cast<size_t>(index->dim()) : 1;
  }
  return indices;
}

Tensor Pick::picked(const Tensor& view) const {
  return picks() ? at::index(ordered(view), indices_of(view)) : view;
}

Tensor Pick::get() const {
  return picked(view());
}

// Converts a value as torch does: accepts Python numbers, and drops leading dimensions of size one.
Tensor Pick::value_for(const Tensor& view, PyObject* given) const {
  Tensor value =
      is_tensor(given)
          ? tensor_of(given)
          : imported("torch", "as_tensor")(py::handle(given)).cast<Tensor>().to(view.options());
  const auto sizes = value.sym_sizes();
  const auto* first =
      std::find_if(sizes.begin(), sizes.end(), [](const c10::SymInt& size) { return size != 1; });
  if (first != sizes.begin()) {
    value = value.view_symint(sizes.slice(first - sizes.begin()));
  }
  return others_.empty() ? value.to(view.scalar_type()) : value;
}

void Pick::set(PyObject* given) const {
  Tensor view = this->view();
  Tensor value = value_for(view, given);
  for (const Tensor& flag : flags_) {
    value = at::where(flag, value, picked(view));
  }
  if (picks()) {
    ordered(view).index_put_(indices_of(view), value);
  } else {
    view.copy_(value);
  }
}

} // namespace torchlayers
