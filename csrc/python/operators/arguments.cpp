#include "python/operators/arguments.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#if __has_include(<torch/csrc/distributed/c10d/Types.hpp>)
#include <torch/csrc/distributed/c10d/Types.hpp>
#endif

#include <vector>

#include "core/errors.h"

namespace torchlayers {

namespace py = pybind11;

// dtypes and memory formats are numbers to the dispatcher.
py::object to_python(const c10::IValue& value, const c10::TypePtr& declared) {
  const auto optional = declared->cast<c10::OptionalType>();
  const auto kind = (optional ? optional->getElementType() : declared)->kind();
  if (value.isInt() && kind == c10::TypeKind::ScalarTypeType) {
    return py::cast(value.toScalarType());
  }
  if (value.isInt() && kind == c10::TypeKind::MemoryFormatType) {
    return py::cast(value.toMemoryFormat());
  }
#if __has_include(<torch/csrc/distributed/c10d/Types.hpp>)
  if (value.isObject() && value.toObject()->name() == "__torch__.torch.classes.c10d.ReduceOp") {
    // Python has no access to the class.
    return py::int_(static_cast<int>(value.toCustomClass<c10d::ReduceOp>()->op_));
  }
#endif
  return torch::jit::toPyObject(value);
}

namespace {

c10::IValue from_python(const py::handle& object, const c10::TypePtr& type) {
  return torch::jit::toIValue(object, type);
}

} // namespace

std::pair<py::tuple, py::dict> python_arguments(
    const c10::FunctionSchema& schema,
    const Args& args,
    bool with_nones,
    bool numbers_are_tensors) {
  py::list positional;
  py::dict keywords;
  for (size_t i = 0; i < args.size(); ++i) {
    const auto& argument = schema.arguments()[i];
    const bool is_kept = numbers_are_tensors && args[i].isTensor() && args[i].toTensor().defined();
    const py::object value =
        is_kept ? py::cast(args[i].toTensor()) : to_python(args[i], argument.real_type());
    if (!argument.kwarg_only()) {
      positional.append(value);
    } else if (with_nones || !value.is_none() || !argument.default_value()) {
      keywords[argument.name().c_str()] = value;
    }
  }
  return {py::tuple(positional), keywords};
}

Args results_from_python(const Operator& op, const py::object& returned, const char* whose) {
  const auto& returns = op.schema().returns();
  std::vector<py::object> parts;
  if (returns.size() == 1) {
    parts.push_back(returned);
  } else if (py::isinstance<py::sequence>(returned) && py::len(returned) == returns.size()) {
    for (const auto& part : py::reinterpret_borrow<py::sequence>(returned)) {
      parts.push_back(py::reinterpret_borrow<py::object>(part));
    }
  } else {
    raise("{} {} must return {} results.", whose, op.name(), returns.size());
  }
  Args results;
  for (size_t i = 0; i < parts.size(); ++i) {
    try {
      results.push_back(from_python(parts[i], returns[i].type()));
    } catch (const py::cast_error&) {
      raise(
          "{} {} returned {} as result {}, which is a {}.",
          whose,
          op.name(),
          py::str(py::type::of(parts[i]).attr("__name__")).cast<std::string>(),
          i,
          returns[i].type()->str());
    }
  }
  return results;
}

} // namespace torchlayers
