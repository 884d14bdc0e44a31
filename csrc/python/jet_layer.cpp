#include "python/jet_layer.h"

#include <utility>
#include <vector>

#include "core/args.h"
#include "core/stack.h"
#include "layers/transforms.h"
#include "python/tree.h"
#include "values/wrapper.h"

namespace torchlayers {

namespace py = pybind11;

namespace {

// Compressed sparse values have a wrapper of their own, without room for coefficients.
bool has_room(const at::Tensor& value) {
  return !value.key_set().has(c10::DispatchKey::SparseCsr);
}

} // namespace

bool JetLayer::process_below(const Operator& op, Args& args) {
  SeriesStep step;
  {
    const py::gil_scoped_acquire gil;
    step = entry_for(op)->step;
  }
  return (step != SeriesStep::None && push(step, op, args)) || PythonLayer::process_below(op, args);
}

bool JetLayer::push(SeriesStep step, const Operator& op, Args& args) const {
  Args values = last(args, op.num_args).vec();
  std::vector<const Coefficients*> series(op.num_args);
  bool any_series = false;
  for (size_t i = 0; i < op.num_args; ++i) {
    c10::IValue& value = values[i];
    if (value.isTensor() && value.toTensor().defined() && follows(value.toTensor())) {
      const at::Tensor inside = wrapper_of(value.toTensor())->value();
      if (!has_room(inside)) {
        return false;
      }
      series[i] = series_of(value.toTensor());
      any_series = any_series || series[i] != nullptr;
      value = inside;
    } else if (is_container(value)) {
      bool any = false;
      visit_held(value, [&](const at::Tensor& tensor) { any = any || follows(tensor); });
      if (any) {
        return false;
      }
    }
  }
  if (!any_series || op.num_returns != 1) {
    return false;
  }
  Coefficients found;
  const auto result = push_series(step, op, values, series, order_, found);
  if (!result || (!found.empty() && !has_room(*result))) {
    return false;
  }
  at::Tensor wrapped = found.empty() ? *result : wrap_series(*result, std::move(found));
  drop(args, op.num_args); // with them the series
  args.emplace_back(std::move(wrapped));
  return true;
}

at::Tensor JetLayer::wrap_series(const at::Tensor& value, Coefficients series) const {
  return wrap_value_as(value, [&](const at::functorch::Interpreter& interpreter) {
    return wrapper_with_series(value, interpreter, std::move(series));
  });
}

at::Tensor JetLayer::new_wrapper(const at::Tensor& value, const py::object& parts) const {
  if (parts.is_none() || !has_room(value)) {
    return wrap_value(value);
  }
  Coefficients series;
  for (const py::handle coefficient : parts) {
    series.push_back(tensor_if_any(coefficient));
  }
  return wrap_series(value, std::move(series));
}

py::object JetLayer::parts_in_wrapper(const at::Tensor& wrapper) const {
  const Coefficients* series = series_of(wrapper);
  if (series == nullptr) {
    return {};
  }
  py::tuple parts(series->size());
  for (size_t i = 0; i < series->size(); ++i) {
    parts[i] = object_if_any((*series)[i]);
  }
  return parts;
}

} // namespace torchlayers
