// Traces for Python: starting and stopping them, and the user's lines of their calls.
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/callbacks.h"
#include "core/trace/call_recorder.h"
#include "python/bindings.h"
#include "python/trace.h"
#include "python/tree.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

// The lines that traced calls came from, and what ran compiled functions, by number. Guarded by the
// GIL.
struct Lines {
  std::vector<std::pair<py::object, int>> lines; // code object and line
  std::map<std::pair<PyObject*, int>, int64_t> numbers;
  std::unordered_map<PyObject*, bool> is_users; // which code objects, kept alive by `codes`
  std::vector<py::object> codes;
  // What ran calls of compiled functions, with how it did.
  std::vector<py::tuple> runs;
  std::map<std::pair<PyObject*, std::string>, int64_t> numbers_of_runs; // by entry, and how
  std::vector<py::object> entries; // so that no other object gets the address of one
  int traces = 0;                  // that have not ended

  bool is_of_user(const py::object& code) {
    const auto found = is_users.find(code.ptr());
    if (found != is_users.end()) {
      return found->second;
    }
    const bool is =
        imported("torchlayers.core.errors", "is_user_file")(code.attr("co_filename")).cast<bool>();
    codes.push_back(code);
    is_users.emplace(code.ptr(), is);
    return is;
  }

  int64_t number_of(const py::object& code, int line) {
    const auto [place, is_new] =
        numbers.try_emplace({code.ptr(), line}, static_cast<int64_t>(lines.size()));
    if (is_new) {
      lines.emplace_back(code, line);
    }
    return place->second;
  }
};

Lines& lines() {
  static auto* instance = new Lines(); // never freed: Python has ended before
  return *instance;
}

int64_t user_line() {
  if (Py_IsInitialized() == 0) {
    return -1;
  }
  const py::gil_scoped_acquire gil;
  auto frame = py::reinterpret_steal<py::object>(
      reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  while (frame) {
    auto* at = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code =
        py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(at)));
    if (lines().is_of_user(code)) {
      return lines().number_of(code, PyFrame_GetLineNumber(at));
    }
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(at)));
  }
  return -1;
}

py::object shown_line(int64_t number) {
  if (number < 0) {
    return py::none();
  }
  const auto& [code, line] = lines().lines.at(static_cast<size_t>(number));
  return py::make_tuple(code.attr("co_filename"), line);
}

template <class Tensors>
py::tuple shown(const Tensors& tensors) {
  py::tuple all(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const RecordedTensor& tensor = tensors[i];
    all[i] = py::make_tuple(
        c10::toString(tensor.dtype),
        py::tuple(py::cast(std::vector<int64_t>(tensor.sizes.begin(), tensor.sizes.end()))),
        tensor.level,
        tensor.batch_dim);
  }
  return all;
}

const char* name_of(RecordedCall::Kind kind) {
  switch (kind) {
    case RecordedCall::Kind::Operator:
      return "operator";
    case RecordedCall::Kind::Layer:
      return "layer";
    case RecordedCall::Kind::Compiled:
      return "compiled";
    case RecordedCall::Kind::Range:
      return "range";
  }
  return "";
}

int64_t start_trace(int64_t limit) {
  const int64_t started = start_recording(limit);
  ++lines().traces;
  return started;
}

// (first number, calls, how many were dropped); see RecordedCall.
py::tuple stop_trace(int64_t started) {
  const Recording recording = stop_recording(started);
  py::list calls;
  for (const RecordedCall& call : recording.calls) {
    py::list steps;
    for (const RecordedStep& step : call.steps) {
      steps.append(py::make_tuple(step.step, step.layer, step.level));
    }
    calls.append(
        py::make_tuple(
            name_of(call.kind),
            call.name,
            call.level,
            call.samples,
            call.parent,
            call.thread,
            call.begin,
            call.end,
            call.has_raised,
            shown_line(call.line),
            shown(call.inputs),
            shown(call.outputs),
            py::tuple(steps),
            call.is_captured,
            call.run < 0 ? py::object(py::none())
                         : lines().runs.at(static_cast<size_t>(call.run))));
  }
  if (--lines().traces == 0) {
    lines() = Lines();
  }
  return py::make_tuple(recording.first, calls, recording.dropped);
}

} // namespace

void note_run(const py::object& entry) {
  Lines& all = lines();
  if (all.traces == 0) {
    return;
  }
  const auto how = entry.attr("traced_how")().cast<std::string>();
  const auto [place, is_new] =
      all.numbers_of_runs.try_emplace({entry.ptr(), how}, static_cast<int64_t>(all.runs.size()));
  if (is_new) {
    all.entries.push_back(entry);
    all.runs.push_back(py::make_tuple(entry.attr("traced_code")(), how));
  }
  record_run(place->second);
}

void bind_trace(py::module_& m) {
  callbacks.user_line = &user_line;
  m.def("start_trace", &start_trace);
  m.def("stop_trace", &stop_trace);
  m.def("is_observed", &is_observed);
  m.def("record_capture", &record_capture);
  m.def("note_run", &note_run);
}

} // namespace torchlayers
