// Records the Python code that runs while a function is captured.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <unordered_set>

#include "python/bindings.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

// On the current thread, from start to stop, without what imports run: a module runs once, and only
// what it left is read again. A profiler that is active goes on.
class RanCode {
 public:
  RanCode() {
    const auto imports = py::module_::import("importlib._bootstrap");
    import_ = imports.attr("_find_and_load").attr("__code__");
    find_ = imports.attr("_find_spec").attr("__code__");
  }

  void start() {
    const PyThreadState* thread = PyThreadState_Get();
    others_ = thread->c_profilefunc;
    others_object_ = py::reinterpret_borrow<py::object>(thread->c_profileobj);
    PyEval_SetProfile(&note, py::capsule(this, [](void*) {}).ptr());
  }

  void stop() {
    PyEval_SetProfile(others_, others_object_.ptr());
  }

  // Pairs of a code object and the globals that it ran with.
  py::list codes;

 private:
  static int note(PyObject* self, PyFrameObject* frame, int what, PyObject* arg) {
    auto* ran = static_cast<RanCode*>(PyCapsule_GetPointer(self, nullptr));
    if (ran->others_ != nullptr && ran->others_(ran->others_object_.ptr(), frame, what, arg) != 0) {
      return -1;
    }
    if (what != PyTrace_CALL && (what != PyTrace_RETURN || ran->imports_ == 0)) {
      return 0;
    }
    const auto code =
        py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
    if (code.is(ran->import_) || code.is(ran->find_)) {
      ran->imports_ += what == PyTrace_CALL ? 1 : -1;
    } else if (what == PyTrace_CALL && ran->imports_ == 0 && ran->seen_.insert(code.ptr()).second) {
      const auto globals = py::reinterpret_steal<py::object>(
          PyObject_GetAttrString(reinterpret_cast<PyObject*>(frame), "f_globals"));
      if (!globals) {
        return -1;
      }
      ran->codes.append(py::make_tuple(code, globals));
    }
    return 0;
  }

  py::object import_, find_; // the code that imports a module, and that asks finders for it
  int imports_ = 0;          // that are running
  Py_tracefunc others_ = nullptr;
  py::object others_object_;
  std::unordered_set<PyObject*> seen_; // kept alive by the list
};

} // namespace

void bind_ran_code(py::module_& m) {
  py::class_<RanCode>(
      m, "RanCode", "The Python code that runs on this thread from start to stop, but for imports.")
      .def(py::init<>())
      .def("start", &RanCode::start)
      .def("stop", &RanCode::stop)
      .def_readonly("codes", &RanCode::codes);
}

} // namespace torchlayers
