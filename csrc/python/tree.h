// Pytrees: their leaves and their structure.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>
#include <vector>

namespace torchlayers {

using Tensors = std::vector<at::Tensor>;
using Leaves = std::vector<pybind11::object>;

// Imports a Python attribute, for rare calls.
pybind11::object imported(const char* module, const char* name);

// Python's guard against unbounded recursion.
class Deeper {
 public:
  explicit Deeper(const char* where) {
    if (Py_EnterRecursiveCall(where) != 0) {
      throw pybind11::error_already_set();
    }
  }
  ~Deeper() {
    Py_LeaveRecursiveCall();
  }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;
};

inline bool is_tensor(pybind11::handle object) {
  return THPVariable_Check(object.ptr());
}
inline const at::Tensor& tensor_of(pybind11::handle object) {
  return THPVariable_Unpack(object.ptr());
}
inline pybind11::object object_of(const at::Tensor& tensor) {
  return pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(tensor));
}

// None becomes an undefined tensor, and vice versa.
inline at::Tensor tensor_if_any(pybind11::handle object) {
  return object.is_none() ? at::Tensor() : tensor_of(object);
}
inline pybind11::object object_if_any(const at::Tensor& tensor) {
  return tensor.defined() ? object_of(tensor) : pybind11::none();
}

// The structure of a tree, without its leaves. Tuples, named tuples, lists and dicts are
// represented by nodes, in the order of traversal. If there is any other container, the structure
// is torch.utils._pytree's.
class Structure {
 public:
  Structure() = default;
  explicit Structure(pybind11::object spec) : spec_(std::move(spec)) {}

  // As a spec of torch.utils._pytree.
  pybind11::object spec() const;

  // Builds a tree from these leaves.
  pybind11::object with(const Leaves& leaves) const;

  bool operator==(const Structure& other) const;

  // Whether the structure is represented by nodes.
  bool is_known() const {
    return !spec_;
  }

  // Flattens objects one after the other, as the members of a tuple with this structure. Runs no
  // Python code.
  class Walk;

  // For Python's garbage collector.
  int visit(visitproc visit, void* arg) const;

 private:
  friend struct Tree;
  enum class Kind : uint8_t { Leaf, Tuple, List, Dict, Named, Sequence };
  struct Node {
    Kind kind;
    Py_ssize_t size;
  };
  struct Rest {
    const Node* node;
    const pybind11::object *detail, *leaf;
  };
  static pybind11::object build(Rest& rest);

  c10::SmallVector<Node, 4> nodes_;
  // The keys of each dict, in a list, and the type of each named tuple or C struct sequence.
  Leaves details_;
  pybind11::object spec_;
};

class Structure::Walk {
 public:
  explicit Walk(const Structure& structure)
      : node_(structure.nodes_.data() + 1),
        end_(structure.nodes_.end()),
        detail_(structure.details_.data()) {}

  // Whether the object has the structure of the next member; appends its leaves, borrowed.
  bool take(PyObject* object, c10::SmallVectorImpl<PyObject*>& leaves);
  bool is_over() const {
    return node_ == end_;
  }

 private:
  const Node* node_;
  const Node* end_;
  const pybind11::object* detail_;
};

struct Tree {
  // Flattening tuples, lists and dicts runs no Python code.
  static Tree of(pybind11::handle object);

  // A tuple of `size` trees, which have to be added.
  static Tree tuple(Py_ssize_t size);
  // False if torch.utils._pytree has to flatten the whole.
  bool add(PyObject* object);

  // Whether all leaves are tensors that pass the test.
  template <class Test>
  bool all_tensors(const Test& test) const {
    for (const auto& leaf : leaves) {
      if (!is_tensor(leaf) || !test(tensor_of(leaf))) {
        return false;
      }
    }
    return true;
  }
  Tensors tensors() const;

  Leaves leaves;
  Structure structure;
};

// The object with each of its tensors changed; all other leaves stay.
template <class Change>
pybind11::object with_tensors(pybind11::handle object, const Change& change) {
  if (THPVariable_CheckExact(object.ptr())) {
    return object_of(change(tensor_of(object)));
  }
  Tree tree = Tree::of(object);
  for (auto& leaf : tree.leaves) {
    if (is_tensor(leaf)) {
      leaf = object_of(change(tensor_of(leaf)));
    }
  }
  return tree.structure.with(tree.leaves);
}

} // namespace torchlayers
