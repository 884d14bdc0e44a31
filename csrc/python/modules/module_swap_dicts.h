// The dicts in which modules keep their tensors, and the replacements in them. NOTE [Swapping
// tensors] in python/modules/modules.h.
#pragma once

#include <c10/util/SmallVector.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/patches.h"

namespace torchlayers::modules {

pybind11::object borrowed(PyObject* object);

// An interned string that is never freed: it outlives the interpreter.
PyObject* interned(const char* text);

// The value of a key, borrowed; nullptr if there is none.
PyObject* item(PyObject* dict, PyObject* key);

// The same where comparing keys may run user code, whose errors are ignored.
PyObject* item_if_any(PyObject* dict, PyObject* key);

std::string text_of(PyObject* name);

// The dicts of a live module, borrowed from it.
struct Dicts {
  PyObject* own;
  PyObject* modules;
  // Parameters, buffers.
  std::array<PyObject*, 2> tensors;

  // The positions of the three in the module's own dict, as in PyDict_Next: they are most likely
  // where they were in the previous call.
  using Places = std::array<Py_ssize_t, 3>;

  // Nothing if the module keeps its tensors elsewhere, like a script module.
  static std::optional<Dicts> of(PyObject* module, Places& places);
};

// The dicts of all modules of a tree; a small tree needs no heap memory.
using AllDicts = c10::SmallVector<Dicts, 8>;

// A dict value to be restored.
struct Replacement {
  pybind11::object dict, key;
  pybind11::object before; // null if the dict did not have the key
};

using Replacements = c10::SmallVector<Replacement, 8>;

void put_back(const Replacement& replaced);

// A call that has put tensors in and not yet restored them.
struct Running {
  std::thread::id thread;
  const AllDicts* dicts; // of all its modules
  const Replacements* replaced;
};

// On all threads, in the order in which they began.
std::vector<Running>& running();

// Whether a tensor that the call puts in is read by the module with these dicts.
bool reaches(const Running& call, const AllDicts& dicts);

// The value in the dict before this thread's running calls put tensors in.
PyObject* original(PyObject* dict, PyObject* key, PyObject* now);

// The tensors that this thread's running calls have put in.
Replacements put_in_now();

// Puts those tensors in again while the object is alive, for code that runs after the calls are
// over.
class PutInAgain {
 public:
  explicit PutInAgain(const Replacements& given);
  ~PutInAgain();
  PutInAgain(const PutInAgain&) = delete;
  PutInAgain& operator=(const PutInAgain&) = delete;

 private:
  Patched patched_;
  Replacements replaced_;
};

// An RNN calls its kernel with a list of its weights, and rebuilds it if a weight is not the one to
// which it has a weak reference.
struct FlatWeights {
  struct Names {
    PyObject* list = interned("_flat_weights");
    PyObject* references = interned("_flat_weight_refs");
    PyObject* weights = interned("_flat_weights_names");
  };
  static const Names& names();

  // Does what the RNN would do itself, in a tenth of the time. On devices other than the CPU the
  // RNN also moves the weights, so it does this itself there, and also for weights that are not
  // parameters.
  static void list_anew(const Dicts& dicts);
};

} // namespace torchlayers::modules
