#include "python/compiled/program.h"

#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <string>
#include <utility>
#include <vector>

#include "python/callable.h"

namespace torchlayers {

namespace py = pybind11;
using torch::jit::Stack;

c10::IValue value_of(py::handle object) {
  PyObject* raw = object.ptr();
  if (THPVariable_Check(raw)) {
    return THPVariable_Unpack(raw);
  }
  if (raw == Py_None) {
    return {};
  }
  if (PyBool_Check(raw)) {
    return raw == Py_True;
  }
  if (PyLong_Check(raw)) {
    return object.cast<int64_t>();
  }
  if (PyFloat_Check(raw)) {
    return PyFloat_AS_DOUBLE(raw);
  }
  if (torch::is_symint(object)) {
    return torch::jit::toIValue(object, c10::SymIntType::get());
  }
  return torch::jit::toIValue(object, c10::PyObjectType::get());
}

py::object object_of_value(c10::IValue&& value) {
  if (value.isTensor()) {
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(value).toTensor()));
  }
  return torch::jit::toPyObject(std::move(value));
}

void run_program(const compiled::Program& program, Stack& stack) {
  const py::gil_scoped_release no_gil;
  program.run(stack);
}

namespace {

struct HeldProgram {
  std::shared_ptr<const compiled::Program> program;

  static PyObject* call(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
    HANDLE_TH_ERRORS
    const auto& program = *Callable<HeldProgram>::of(self).program;
    TORCH_CHECK_TYPE(
        names == nullptr && PyVectorcall_NARGS(flags) == 1 &&
            (PyList_Check(args[0]) || PyTuple_Check(args[0])),
        "torchlayers: a program takes its inputs as one list");
    Stack stack;
    stack.reserve(std::max(program.num_inputs(), program.num_outputs()));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(args[0]); ++i) {
      stack.push_back(value_of(PySequence_Fast_GET_ITEM(args[0], i)));
    }
    run_program(program, stack);
    auto outputs = py::reinterpret_steal<py::object>(PyList_New(std::ssize(stack)));
    for (size_t i = 0; i < stack.size(); ++i) {
      PyList_SET_ITEM(outputs.ptr(), i, object_of_value(std::move(stack[i])).release().ptr());
    }
    return outputs.release().ptr();
    END_HANDLE_TH_ERRORS
  }
};

PyTypeObject* program_type = nullptr;

void destroy_program(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Callable<HeldProgram>::of(self).~HeldProgram();
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* slots_of_program(PyObject* self, void*) {
  return PyLong_FromSize_t(Callable<HeldProgram>::of(self).program->num_slots());
}

PyObject* steps_of_program(PyObject* self, void*) {
  HANDLE_TH_ERRORS
  py::list descriptions;
  for (const auto& step : Callable<HeldProgram>::of(self).program->steps()) {
    descriptions.append(step.description);
  }
  return descriptions.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyGetSetDef program_properties[] = {
    {"num_slots",
     &slots_of_program,
     nullptr,
     "The maximum number of values that are alive at once.",
     nullptr},
    {"steps",
     &steps_of_program,
     nullptr,
     "The operator or function that each step calls.",
     nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

void bind_program_type(py::module_& m) {
  static PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>("A compiled program: program([*inputs]) -> [*outputs].")},
      {Py_tp_dealloc, reinterpret_cast<void*>(&destroy_program)},
      {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
      {Py_tp_members, Callable<HeldProgram>::members()},
      {Py_tp_getset, program_properties},
      {0, nullptr}};
  static PyType_Spec spec = {
      "torchlayers._C.Program",
      sizeof(Callable<HeldProgram>),
      0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
      slots};
  program_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (program_type == nullptr) {
    throw py::error_already_set();
  }
  m.attr("Program") = py::handle(reinterpret_cast<PyObject*>(program_type));
}

} // namespace

std::shared_ptr<const compiled::Program> program_of(py::handle object) {
  return Py_TYPE(object.ptr()) == program_type ? Callable<HeldProgram>::of(object.ptr()).program
                                               : nullptr;
}

py::object object_of_program(std::shared_ptr<const compiled::Program> program) {
  return py::reinterpret_steal<py::object>(
      Callable<HeldProgram>::make(program_type, HeldProgram{std::move(program)}));
}

void bind_programs(py::module_& m) {
  bind_program_type(m);
  bind_program_writer(m);
}

} // namespace torchlayers
