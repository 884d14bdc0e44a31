// The dicts that modules keep their tensors in, and what is in the place of another thing there.
// NOTE [Swapping tensors] in python/modules.h.
#pragma once

#include <c10/util/SmallVector.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace torchlayers::modules {

pybind11::object borrowed(PyObject* object);

// What is never let go: it outlives the interpreter.
PyObject* interned(const char* text);

// Of the dict, borrowed; nullptr where there is none.
PyObject* item(PyObject* dict, PyObject* key);

// The same, where comparing keys may run a user's code, whose error is nobody's then.
PyObject* item_if_any(PyObject* dict, PyObject* key);

std::string text_of(PyObject* name);

// The dicts of a module that is there now, borrowed from it.
struct Dicts {
  PyObject* own;
  PyObject* modules;
  // Parameters, buffers.
  std::array<PyObject*, 2> tensors;

  // Where in the module's own dict the three are, as PyDict_Next counts: most likely where they
  // were before.
  using Places = std::array<Py_ssize_t, 3>;

  // Nothing where the module keeps its tensors elsewhere, as a script module does.
  static std::optional<Dicts> of(PyObject* module, Places& places);
};

// Those of all modules of a tree. A small one needs no memory from the heap.
using AllDicts = c10::SmallVector<Dicts, 8>;

// A value of a dict that is to be put back.
struct Replacement {
  pybind11::object dict, key;
  pybind11::object before; // none where the dict had no such key
};

using Replacements = c10::SmallVector<Replacement, 8>;

void put_back(const Replacement& replaced);

// A call between putting tensors in and putting them back.
struct Running {
  std::thread::id thread;
  const AllDicts* dicts; // of all its modules
  const Replacements* replaced;
};

// On all threads, those begun first in front.
std::vector<Running>& running();

// What the call puts in is read by the module that has these dicts.
bool reaches(const Running& call, const AllDicts& dicts);

// What the dict held before this thread's calls that are running put tensors in.
PyObject* original(PyObject* dict, PyObject* key, PyObject* now);

// What this thread's calls that are running have put in.
Replacements put_in_now();

// While it lives, that is in again, for what runs after the calls are over.
class PutInAgain {
 public:
  explicit PutInAgain(const Replacements& given);
  ~PutInAgain();
  PutInAgain(const PutInAgain&) = delete;
  PutInAgain& operator=(const PutInAgain&) = delete;

 private:
  Replacements replaced_;
};

// An RNN calls its kernel with a list of its weights, and makes it anew where a weight is another
// one than it has a weak reference to.
struct FlatWeights {
  struct Names {
    PyObject* list = interned("_flat_weights");
    PyObject* references = interned("_flat_weight_refs");
    PyObject* weights = interned("_flat_weights_names");
  };
  static const Names& names();

  // What the RNN would do itself, in a tenth of the time. Elsewhere than on a processor it also
  // moves the weights, and is left to it; so are weights that are not parameters.
  static void list_anew(const Dicts& dicts);
};

} // namespace torchlayers::modules
