// Lets Python write programs.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/python_arg_parser.h>

#include <string>
#include <utility>
#include <vector>

#include "compiled/kernels.h"
#include "compiled/loop.h"
#include "compiled/matmul_backend.h"
#include "python/compiled/program.h"
#include "python/compiled/written_layout.h"

namespace torchlayers {

namespace py = pybind11;
using compiled::Argument;
using torch::jit::Stack;

namespace {

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

// A list's members are converted by the list's element type: `Tensor?[]` may hold None.
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
  const auto& element = list->getElementType();
  const bool are_sizes = element->kind() == c10::TypeKind::SymIntType; // integers in a run
  return Argument::of(std::move(members), are_sizes ? c10::IntType::get() : element);
}

// Matches the arguments to the schema as torch does, with defaults for missing ones.
std::vector<Argument> arguments_of(
    const c10::FunctionSchema& schema, const py::tuple& args, const py::dict& kwargs) {
  // Operators for which torch accepts 2 as a tensor.
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

// A function defined in Python is called in Python.
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

Argument argument_of_tensor(py::handle tensor) {
  return py::isinstance<RecordedValue>(tensor)
             ? Argument::of(tensor.cast<RecordedValue>().index)
             : Argument::of(c10::IValue(THPVariable_Unpack(tensor.ptr())));
}

std::vector<Argument> tensors_of(const py::list& tensors) {
  std::vector<Argument> arguments;
  for (const auto& tensor : tensors) {
    arguments.push_back(argument_of_tensor(tensor));
  }
  return arguments;
}

std::vector<RecordedValue> call_operator(
    compiled::ProgramBuilder& builder,
    const std::string& name,
    const std::string& overload,
    const py::tuple& args,
    const py::dict& kwargs,
    std::string description) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  std::vector<RecordedValue> results;
  for (const auto value :
       builder.call(op, arguments_of(op.schema(), args, kwargs), std::move(description))) {
    results.push_back({value});
  }
  return results;
}

RecordedValue call_python(
    compiled::ProgramBuilder& builder,
    py::object function,
    const std::vector<RecordedValue>& values,
    std::string description) {
  return {builder.call(
      called_in_python(std::move(function)), values_of(values), std::move(description))};
}

RecordedValue allocate(
    compiled::ProgramBuilder& builder,
    const py::sequence& sizes,
    const py::sequence& strides,
    at::ScalarType dtype) {
  const WrittenLayout written(sizes, strides);
  return {builder.call(
      compiled::allocation(written.layout(), dtype), written.values(), "empty_strided")};
}

RecordedValue reinterpret(
    compiled::ProgramBuilder& builder,
    RecordedValue tensor,
    const py::sequence& sizes,
    const py::sequence& strides,
    py::handle offset) {
  WrittenLayout written(sizes, strides);
  written.set_offset(offset);
  return {builder.call(
      compiled::reinterpretation(written.layout()),
      written.values({Argument::of(tensor.index)}),
      "reinterpret_tensor")};
}

void check_layout(
    compiled::ProgramBuilder& builder,
    RecordedValue tensor,
    const py::sequence& sizes,
    const py::sequence& strides) {
  const WrittenLayout written(sizes, strides);
  builder.call(
      compiled::layout_check(written.layout()),
      written.values({Argument::of(tensor.index)}),
      "assert_size_stride");
}

RecordedValue lay_out(
    compiled::ProgramBuilder& builder, RecordedValue tensor, const py::sequence& strides) {
  std::vector<Argument> numbers;
  for (const auto& stride : strides) {
    numbers.push_back(argument_of_number(stride));
  }
  return {builder.lay_out(tensor.index, std::move(numbers))};
}

RecordedValue arithmetic(
    compiled::ProgramBuilder& builder, const std::string& name, py::handle left, py::handle right) {
  return {builder.arithmetic(name, argument_of_number(left), argument_of_number(right))};
}

void multiply(
    compiled::ProgramBuilder& builder,
    const py::list& tensors,
    double beta,
    double alpha,
    std::string description) {
  builder.call(compiled::product(beta, alpha), tensors_of(tensors), std::move(description));
}

void call_kernel(
    compiled::ProgramBuilder& builder,
    size_t function,
    const py::list& given,
    std::string description) {
  std::vector<Argument> arguments;
  for (const auto& each : given) {
    arguments.push_back(
        py::isinstance<py::int_>(each) ? Argument::of(c10::IValue(each.cast<int64_t>()))
                                       : argument_of_tensor(each));
  }
  TORCH_CHECK_VALUE(arguments.size() <= compiled::kMostAddresses, "torchlayers: too many tensors");
  builder.call(
      compiled::kernel_call(reinterpret_cast<void*>(function)), // NOLINT(performance-no-int-to-ptr)
      std::move(arguments),
      std::move(description));
}

std::shared_ptr<const compiled::Program> held_program(py::handle object) {
  auto program = program_of(object);
  TORCH_CHECK_TYPE(program, "torchlayers: a loop repeats a program");
  return program;
}

RecordedValue repeat(
    compiled::ProgramBuilder& builder,
    py::handle body,
    size_t carried,
    size_t sliced,
    const py::list& tensors,
    std::string description) {
  const compiled::Loop loop{held_program(body), carried, sliced};
  return {builder.call(
      [loop](Stack& stack) { loop.run(stack); },
      tensors_of(tensors),
      std::move(description),
      /*is_kernel=*/true)};
}

RecordedValue repeat_while(
    compiled::ProgramBuilder& builder,
    py::handle condition,
    py::handle body,
    size_t carried,
    const py::list& tensors,
    std::string description) {
  const compiled::WhileLoop loop{held_program(condition), held_program(body), carried};
  return {builder.call(
      [loop](Stack& stack) { loop.run(stack); },
      tensors_of(tensors),
      std::move(description),
      /*is_kernel=*/true)};
}

py::object finish_program(compiled::ProgramBuilder& builder, const py::list& outputs) {
  std::vector<Argument> arguments;
  for (const auto& output : outputs) {
    arguments.push_back(
        py::isinstance<RecordedValue>(output) ? Argument::of(output.cast<RecordedValue>().index)
                                              : Argument::of(value_of(output)));
  }
  return object_of_program(builder.finish(std::move(arguments)));
}

} // namespace

void bind_program_writer(py::module_& m) {
  using torch::wrap_pybind_function;
  py::enum_<compiled::OneDnn>(m, "OneDnn", "When compiled code uses oneDNN for matrix products.")
      .value("WHERE_FASTER", compiled::OneDnn::kWhereFaster)
      .value("ALWAYS", compiled::OneDnn::kAlways)
      .value("NEVER", compiled::OneDnn::kNever);
  m.def(
      "multiply_with",
      &compiled::multiply_with,
      "Sets when compiled code uses oneDNN for matrix products; returns the previous setting.");
  py::class_<RecordedValue>(m, "RecordedValue", "A value of a program that is being written.")
      .def(
          py::init([](size_t input) { return RecordedValue{input}; }),
          "The input with this index.");
  py::class_<compiled::ProgramBuilder>(m, "ProgramWriter", "Writes a program, one step at a time.")
      .def(py::init<size_t>())
      .def("call", wrap_pybind_function(&call_operator))
      .def("call_python", wrap_pybind_function(&call_python))
      .def(
          "item",
          wrap_pybind_function(
              [](compiled::ProgramBuilder& builder, RecordedValue list, int64_t i) {
                return RecordedValue{builder.item(list.index, i)};
              }))
      .def("lay_out", wrap_pybind_function(&lay_out))
      .def(
          "size",
          wrap_pybind_function(
              [](compiled::ProgramBuilder& builder, RecordedValue tensor, int64_t dim) {
                return RecordedValue{builder.size(tensor.index, dim)};
              }))
      .def(
          "stride",
          wrap_pybind_function(
              [](compiled::ProgramBuilder& builder, RecordedValue tensor, int64_t dim) {
                return RecordedValue{builder.stride(tensor.index, dim)};
              }))
      .def("arithmetic", wrap_pybind_function(&arithmetic))
      .def("allocate", wrap_pybind_function(&allocate))
      .def("reinterpret", wrap_pybind_function(&reinterpret))
      .def("check_layout", wrap_pybind_function(&check_layout))
      .def("multiply", wrap_pybind_function(&multiply))
      .def("call_kernel", wrap_pybind_function(&call_kernel))
      .def("repeat", wrap_pybind_function(&repeat))
      .def("repeat_while", wrap_pybind_function(&repeat_while))
      .def("finish", wrap_pybind_function(&finish_program));
}

} // namespace torchlayers
