#include "python/entry.h"

#include "layers/custom_function.h"
#include "layers/functionalize/functionalize.h"
#include "layers/grad.h"
#include "layers/jvp.h"
#include "layers/random/recorded_draws.h"
#include "layers/random/seeded.h"
#include "layers/vmap/vmap.h"
#include "python/bindings.h"
#include "python/operators/arguments.h"
#include "python/tree.h"

namespace torchlayers {
namespace {

namespace py = pybind11;
using torch::wrap_pybind_function;

// Extends the error message if torch rejected an autograd.Function, or an operation that needs a
// tensor with storage.
void explain(py::handle error, const std::string& layer, const py::object& samples) {
  imported("torchlayers.autograd_function.errors", "explain")(error);
  imported("torchlayers.core.errors", "explain")(error, layer, samples);
}

// draw(name, overload, args, kwargs): the operator's results, or None if the operator is not
// random.
DrawnOutsideLayer::Draw drawn_by(py::object draw) {
  const std::shared_ptr<py::object> held(new py::object(std::move(draw)), [](py::object* object) {
    const py::gil_scoped_acquire gil;
    delete object;
  });
  return [held](const Operator& op, Args& args) {
    const py::gil_scoped_acquire gil;
    const Args own = last(args, op.num_args).vec();
    const auto [positional, keywords] = python_arguments(op.schema(), own, /*with_nones=*/false);
    const py::object returned =
        (*held)(op.schema().name(), op.schema().overload_name(), positional, keywords);
    if (returned.is_none()) {
      return false;
    }
    Args results = results_from_python(op, returned, "what draws outside for");
    drop(args, op.num_args);
    args.insert(args.end(), results.begin(), results.end());
    return true;
  };
}

} // namespace

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
  if (has_run([&] { leave(entry, error.value()); })) {
    throw error;
  }
  const py::error_already_set next;
  const auto context =
      py::reinterpret_steal<py::object>(PyException_GetContext(next.value().ptr()));
  if (!context && !next.value().is(error.value())) { // as Python does while it handles the first
    PyException_SetContext(next.value().ptr(), py::object(error.value()).release().ptr());
  }
  throw next;
}

Randomness parse_randomness(py::handle name) {
  for (auto randomness :
       {Randomness::Error, Randomness::Same, Randomness::Different, Randomness::Keyed}) {
    if (PyUnicode_Check(name.ptr()) &&
        PyUnicode_CompareWithASCIIString(name.ptr(), randomness_name(randomness)) == 0) {
      return randomness;
    }
  }
  throw py::value_error("torchlayers: no such randomness: " + std::string(py::repr(name)));
}

void bind_entries(py::module_& m) {
  py::class_<Entry, std::shared_ptr<Entry>>(
      m, "Entry", "Context manager: inside, a layer is active.")
      .def("__enter__", wrap_pybind_function([](Entry& entry) { return entry.enter(); }))
      .def(
          "__exit__",
          wrap_pybind_function(
              [](Entry& entry, const py::object&, const py::object& error, const py::object&) {
                leave(entry, error);
              }));
  m.def("grad_entry", [] { return std::make_shared<Entry>(std::make_shared<GradLayer>()); });
  m.def("jvp_entry", [] { return std::make_shared<Entry>(std::make_shared<JvpLayer>()); });
  m.def("vmap_entry", [](const c10::SymInt& batch_size, const py::object& randomness) {
    return std::make_shared<Entry>(
        std::make_shared<VmapLayer>(batch_size, parse_randomness(randomness)));
  });
  // Enters the samples again for a method of a Function: with that number of samples, or those of
  // the vmap that the Function's call has left. NOTE [Captured by a Function].
  m.def(
      "vmap_again_entry",
      [](const c10::SymInt& batch_size, const py::object& randomness, std::optional<uint64_t> of) {
        return std::make_shared<Entry>(std::make_shared<VmapLayer>(
            batch_size,
            parse_randomness(randomness),
            of ? *of : BelowForFunction::to_enter_again()));
      },
      py::arg("batch_size"),
      py::arg("randomness"),
      py::arg("of") = py::none());
  m.def("seeded_entry", [](const at::Tensor& key) {
    return std::make_shared<Entry>(std::make_shared<SeededLayer>(key));
  });
  m.def("drawn_outside_entry", [](const py::object& draw) {
    return std::make_shared<Entry>(std::make_shared<DrawnOutsideLayer>(drawn_by(draw)));
  });
  m.def("functionalize_entry", [](bool keeps_views) {
    return std::make_shared<Entry>(std::make_shared<FunctionalizeLayer>(keeps_views));
  });
}

} // namespace torchlayers
