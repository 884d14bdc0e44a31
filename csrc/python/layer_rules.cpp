#include "python/layer_rules.h"

#include <torch/csrc/utils/python_numbers.h>

#include <utility>

#include "python/tree.h"

namespace torchlayers {

namespace py = pybind11;

namespace {

thread_local ProcessedCall* innermost_call = nullptr;

// Whether a list that Python got is as it was: rules may change it. Lists of tensors count as
// changed.
bool is_unchanged(PyObject* list, const c10::IValue& value) {
  if (!value.isIntList() ||
      PyList_GET_SIZE(list) != static_cast<Py_ssize_t>(value.toIntList().size())) {
    return false;
  }
  Py_ssize_t i = 0;
  for (const int64_t number : value.toIntList()) {
    PyObject* item = PyList_GET_ITEM(list, i++);
    if (!PyLong_CheckExact(item) || THPUtils_unpackLong(item) != number) {
      return false;
    }
  }
  return true;
}

} // namespace

const py::object& overload_of(const Operator& op) {
  static auto* overloads = new std::unordered_map<const Operator*, py::object>();
  py::object& overload = (*overloads)[&op];
  if (!overload) {
    overload = imported("torchlayers.core.operator_schema", "overload")(
        op.schema().name(), op.schema().overload_name());
  }
  return overload;
}

std::shared_ptr<const RuleEntry> RuleCache::find(const Operator& op, const py::object& table) {
  if (const auto it = entries_.find(&op); it != entries_.end()) {
    return it->second;
  }
  auto entry = std::make_shared<RuleEntry>();
  entry->overload = overload_of(op);
  const py::object rule = table.attr("find")(entry->overload);
  if (PyFunction_Check(rule.ptr())) {
    entry->rule = rule;
    entry->step =
        series_step_named(py::getattr(rule, "_torchlayers_step", py::str()).cast<std::string>());
  }
  entry->takes_whole = op.is_composite && table.attr("takes_whole")(entry->overload).cast<bool>();
  for (const c10::Argument& argument : op.schema().arguments()) {
    entry->keywords.push_back(
        argument.kwarg_only() ? py::object(py::str(argument.name())) : py::object());
  }
  entries_[&op] = entry;
  return entry;
}

ProcessedCall::ProcessedCall(
    const void* layer,
    const Operator& op,
    const Args& args,
    py::handle overload,
    c10::ArrayRef<PyObject*> objects,
    c10::ArrayRef<PyObject*> names,
    py::handle rule)
    : layer_(layer),
      op_(op),
      args_(args),
      overload_(overload),
      rule_(rule),
      objects_(objects),
      names_(names),
      outer_(innermost_call) {
  innermost_call = this;
}

ProcessedCall::~ProcessedCall() {
  innermost_call = outer_;
}

const ProcessedCall* ProcessedCall::innermost() {
  return innermost_call;
}

bool ProcessedCall::is_same(
    const void* layer, py::handle overload, const py::tuple& args, const py::dict& kwargs) const {
  const size_t count = objects_.size() - names_.size();
  if (layer != layer_ || !overload.is(overload_) || args.size() != count ||
      kwargs.size() != names_.size()) {
    return false;
  }
  for (size_t i = 0; i < objects_.size(); ++i) {
    PyObject* passed = i < count ? PyTuple_GET_ITEM(args.ptr(), static_cast<Py_ssize_t>(i))
                                 : PyDict_GetItemWithError(kwargs.ptr(), names_[i - count]);
    if (passed != objects_[i]) {
      return false;
    }
    if (PyList_Check(passed) &&
        (i >= count || !is_unchanged(passed, peek(args_, i, op_.num_args)))) {
      return false;
    }
  }
  return true;
}

} // namespace torchlayers
