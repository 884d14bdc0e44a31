#include "python/entry.h"

#include "layers/functionalize.h"
#include "layers/grad.h"
#include "layers/jvp.h"
#include "layers/vmap.h"

namespace torchlayers {
namespace {

namespace py = pybind11;
using torch::wrap_pybind_function;

// Sees to the autograd.Functions that have been defined since the last call: torch numbers
// them, and to look at its counter is to take a number. NOTE [Reaching old-style Functions]
// in adoption.py.
void adopt_new_functions() {
  static auto* counter = new py::object(
      py::module_::import("torch.autograd.function").attr("AUTOGRAD_FUNCTION_COUNTER"));
  static int64_t expected = -1;
  const auto number = py::reinterpret_steal<py::int_>(PyIter_Next(counter->ptr()));
  const auto now = number.cast<int64_t>();
  if (now != expected) {
    py::module_::import("torchlayers.autograd_function.adoption").attr("adopt")();
  }
  expected = now + 1;
}

// Says more where torch refused an autograd.Function, or what only a tensor in memory can do.
void explain(py::handle error, const std::string& layer, const py::object& samples) {
  py::module_::import("torchlayers.autograd_function.refused").attr("explain")(error);
  py::module_::import("torchlayers.errors").attr("explain")(error, layer, samples);
}

// While it lives, the error is being handled: what is raised has it as its context.
class Handling {
 public:
  explicit Handling(const py::error_already_set& error) {
    PyErr_GetExcInfo(&type_, &value_, &trace_);
    PyErr_SetExcInfo(
        py::object(error.type()).release().ptr(),
        py::object(error.value()).release().ptr(),
        py::object(error.trace()).release().ptr());
  }
  ~Handling() {
    PyErr_SetExcInfo(type_, value_, trace_);
  }
  Handling(const Handling&) = delete;
  Handling& operator=(const Handling&) = delete;

 private:
  PyObject* type_ = nullptr;
  PyObject* value_ = nullptr;
  PyObject* trace_ = nullptr;
};

} // namespace

int64_t enter(Entry& entry) {
  adopt_new_functions();
  return entry.enter();
}

void leave(Entry& entry, py::handle error) {
  if (!PyErr_GivenExceptionMatches(error.ptr(), PyExc_RuntimeError)) {
    entry.leave();
    return;
  }
  const Layer* layer = entry.layer();
  const c10::SymInt* batch_size = layer != nullptr ? layer->batch_size() : nullptr;
  const std::string name = layer != nullptr ? layer->name() : "";
  const py::object samples = batch_size != nullptr ? py::cast(*batch_size) : py::none();
  entry.leave();
  explain(error, name, samples);
}

void leave_with_error(Entry& entry) {
  const py::error_already_set error;
  if (error.trace()) {
    PyException_SetTraceback(error.value().ptr(), error.trace().ptr());
  }
  const auto has_left = [&]() -> bool {
    const Handling context(error);
    HANDLE_TH_ERRORS
    leave(entry, error.value());
    return true;
    END_HANDLE_TH_ERRORS_RET(false)
  };
  if (has_left()) {
    throw error;
  }
  throw py::error_already_set();
}

Randomness parse_randomness(py::handle name) {
  for (auto randomness : {Randomness::Error, Randomness::Same, Randomness::Different}) {
    if (PyUnicode_Check(name.ptr()) &&
        PyUnicode_CompareWithASCIIString(name.ptr(), randomness_name(randomness)) == 0) {
      return randomness;
    }
  }
  throw py::value_error("torchlayers: no such randomness: " + std::string(py::repr(name)));
}

std::shared_ptr<Entry> entry_of(std::shared_ptr<Layer> layer) {
  return std::make_shared<Entry>(std::move(layer));
}

void bind_entries(py::module_& m) {
  py::class_<Entry, std::shared_ptr<Entry>>(m, "Entry", "Context manager: inside, a layer is on.")
      .def("__enter__", wrap_pybind_function([](Entry& entry) { return enter(entry); }))
      .def(
          "__exit__",
          wrap_pybind_function(
              [](Entry& entry, const py::object&, const py::object& error, const py::object&) {
                leave(entry, error);
              }));
  m.def("GradEntry", [] { return entry_of(std::make_shared<GradLayer>()); });
  m.def("JvpEntry", [] { return entry_of(std::make_shared<JvpLayer>()); });
  m.def("VmapEntry", [](c10::SymInt batch_size, const py::object& randomness) {
    return entry_of(
        std::make_shared<VmapLayer>(std::move(batch_size), parse_randomness(randomness)));
  });
  m.def("FunctionalizeEntry", [](bool keeps_views) {
    return entry_of(std::make_shared<FunctionalizeLayer>(keeps_views));
  });
}

} // namespace torchlayers
