#include "python/program.h"

#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/python_arg_parser.h>

#include <string>
#include <utility>
#include <vector>

#include "compiled/kernels.h"
#include "python/callable.h"

namespace torchlayers {

namespace py = pybind11;
using compiled::Argument;
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

// A value of a recording, as it stands among an operator's arguments.
struct RecordedValue {
  compiled::Value index;
};

bool holds_value(py::handle object) {
  if (py::isinstance<RecordedValue>(object)) {
    return true;
  }
  if (!PyTuple_Check(object.ptr()) && !PyList_Check(object.ptr())) {
    return false;
  }
  for (const auto& member : py::reinterpret_borrow<py::sequence>(object)) {
    if (holds_value(member)) {
      return true;
    }
  }
  return false;
}

c10::TypePtr without_optional(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

// A list's members are of its type, whatever they are without it: `Tensor?[]` may hold None.
Argument argument_of(py::handle object, const c10::TypePtr& type) {
  if (py::isinstance<RecordedValue>(object)) {
    return Argument::of(object.cast<RecordedValue>().index);
  }
  const auto list = without_optional(type)->cast<c10::ListType>();
  if (!list || !holds_value(object)) {
    return Argument::of(torch::jit::toIValue(object, type));
  }
  std::vector<Argument> members;
  for (const auto& member : py::reinterpret_borrow<py::sequence>(object)) {
    members.push_back(argument_of(member, list->getElementType()));
  }
  return Argument::of(std::move(members), list->getElementType());
}

// As torch takes them: what has no value of its own has the schema's.
std::vector<Argument> arguments_of(
    const c10::FunctionSchema& schema, const py::tuple& args, const py::dict& kwargs) {
  // Where torch takes 2 for a tensor.
  const torch::jit::ToIValueAllowNumbersAsTensors numbers(
      torch::should_allow_numbers_as_tensors(
          c10::Symbol::fromQualString(schema.name()).toUnqualString()));
  std::vector<Argument> arguments;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& declared = schema.arguments()[i];
    py::object given;
    if (i < args.size()) {
      given = args[i];
    } else if (kwargs.contains(declared.name().c_str())) {
      given = kwargs[declared.name().c_str()];
    }
    if (!given) {
      TORCH_CHECK(declared.default_value(), schema.name(), " lacks '", declared.name(), "'");
      arguments.push_back(Argument::of(*declared.default_value()));
    } else if (holds_value(given)) {
      arguments.push_back(argument_of(given, declared.real_type()));
    } else {
      arguments.push_back(Argument::of(torch::jit::argumentToIValue(schema, i, given)));
    }
  }
  return arguments;
}

// What Python defines is called there.
compiled::Function called_in_python(py::object function) {
  const auto drop = [](py::object* held) {
    const py::gil_scoped_acquire gil;
    delete held;
  };
  const std::shared_ptr<py::object> held(new py::object(std::move(function)), drop);
  return [held](Stack& stack) {
    const py::gil_scoped_acquire gil;
    py::tuple args(stack.size());
    for (size_t i = 0; i < stack.size(); ++i) {
      args[i] = object_of_value(std::move(stack[i]));
    }
    stack.clear();
    stack.push_back(value_of((*held)(*args)));
  };
}

std::vector<Argument> values_of(const std::vector<RecordedValue>& values) {
  std::vector<Argument> arguments;
  for (const auto& value : values) {
    arguments.push_back(Argument::of(value.index));
  }
  return arguments;
}

std::vector<RecordedValue> call_operator(
    compiled::Recording& recording,
    const std::string& name,
    const std::string& overload,
    const py::tuple& args,
    const py::dict& kwargs,
    std::string description) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  std::vector<RecordedValue> results;
  for (const auto value :
       recording.call(op, arguments_of(op.schema(), args, kwargs), std::move(description))) {
    results.push_back({value});
  }
  return results;
}

RecordedValue call_python(
    compiled::Recording& recording,
    py::object function,
    const std::vector<RecordedValue>& values,
    std::string description) {
  return {recording.call(
      called_in_python(std::move(function)), values_of(values), std::move(description))};
}

using Sizes = std::vector<int64_t>;

RecordedValue allocate(
    compiled::Recording& recording, Sizes sizes, Sizes strides, at::ScalarType dtype) {
  return {recording.call(
      compiled::allocation({std::move(sizes), std::move(strides)}, dtype), {}, "empty_strided")};
}

RecordedValue reinterpret(
    compiled::Recording& recording,
    RecordedValue tensor,
    Sizes sizes,
    Sizes strides,
    int64_t offset) {
  return {recording.call(
      compiled::reinterpretation({std::move(sizes), std::move(strides), offset}),
      {Argument::of(tensor.index)},
      "reinterpret_tensor")};
}

void check_layout(
    compiled::Recording& recording, RecordedValue tensor, Sizes sizes, Sizes strides) {
  recording.call(
      compiled::layout_check({std::move(sizes), std::move(strides)}),
      {Argument::of(tensor.index)},
      "assert_size_stride");
}

void call_kernel(
    compiled::Recording& recording,
    size_t function,
    const py::list& tensors,
    std::string description) {
  std::vector<Argument> arguments;
  for (const auto& tensor : tensors) {
    arguments.push_back(
        py::isinstance<RecordedValue>(tensor)
            ? Argument::of(tensor.cast<RecordedValue>().index)
            : Argument::of(c10::IValue(THPVariable_Unpack(tensor.ptr()))));
  }
  TORCH_CHECK_VALUE(arguments.size() <= compiled::kMostAddresses, "torchlayers: too many tensors");
  recording.call(
      compiled::kernel_call(reinterpret_cast<void*>(function)), // NOLINT(performance-no-int-to-ptr)
      std::move(arguments),
      std::move(description));
}

struct HeldProgram {
  std::shared_ptr<const compiled::Program> program;

  static PyObject* call(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
    HANDLE_TH_ERRORS
    const auto& program = *Callable<HeldProgram>::of(self).program;
    TORCH_CHECK_TYPE(
        names == nullptr && PyVectorcall_NARGS(flags) == 1 &&
            (PyList_Check(args[0]) || PyTuple_Check(args[0])),
        "torchlayers: a program takes its inputs in one list");
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
    {"num_slots", &slots_of_program, nullptr, "How many values live at once, at most.", nullptr},
    {"steps", &steps_of_program, nullptr, "What each step calls.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

void bind_program_type(py::module_& m) {
  static PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>("A recording that runs: program([*inputs]) -> [*outputs].")},
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

py::object finish_program(compiled::Recording& recording, const py::list& outputs) {
  std::vector<Argument> arguments;
  for (const auto& output : outputs) {
    arguments.push_back(
        py::isinstance<RecordedValue>(output) ? Argument::of(output.cast<RecordedValue>().index)
                                              : Argument::of(value_of(output)));
  }
  return py::reinterpret_steal<py::object>(Callable<HeldProgram>::make(
      program_type, HeldProgram{recording.finish(std::move(arguments))}));
}

} // namespace

std::shared_ptr<const compiled::Program> program_of(py::handle object) {
  return Py_TYPE(object.ptr()) == program_type ? Callable<HeldProgram>::of(object.ptr()).program
                                               : nullptr;
}

void bind_programs(py::module_& m) {
  using torch::wrap_pybind_function;
  bind_program_type(m);
  py::class_<RecordedValue>(m, "RecordedValue", "A value of a program, while that is written.")
      .def(
          py::init([](size_t input) { return RecordedValue{input}; }), "The input of this number.");
  py::class_<compiled::Recording>(m, "ProgramWriter", "Writes a program, a step at a time.")
      .def(py::init<size_t>())
      .def("call", wrap_pybind_function(&call_operator))
      .def("call_python", wrap_pybind_function(&call_python))
      .def(
          "item",
          wrap_pybind_function([](compiled::Recording& recording, RecordedValue list, int64_t i) {
            return RecordedValue{recording.item(list.index, i)};
          }))
      .def("allocate", wrap_pybind_function(&allocate))
      .def("reinterpret", wrap_pybind_function(&reinterpret))
      .def("check_layout", wrap_pybind_function(&check_layout))
      .def("call_kernel", wrap_pybind_function(&call_kernel))
      .def("finish", wrap_pybind_function(&finish_program));
}

} // namespace torchlayers
