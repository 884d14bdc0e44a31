// The callbacks by which the core calls Python.
#include "core/callbacks.h"

#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>

#include "core/errors.h"
#include "python/bindings.h"
#include "python/calls/patched_torch_func.h"
#include "python/operators/arguments.h"
#include "python/patches/patches.h"
#include "python/tree.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

// The counter of NOTE [One dual level]. torch.func's counter and forward_ad's current level are
// module globals. The GIL is held throughout, so no other thread or signal handler interferes.
class DualLevel {
 public:
  static DualLevel& instance() {
    static auto* level = new DualLevel();
    return *level;
  }
  void hold() {
    const int64_t jvps = count_.get();
    if (jvps == 0 && current_.get() < 0) {
      current_.set(static_cast<int64_t>(torch::autograd::forward_ad::enter_dual_level()));
      opened_by_us_ = true;
    }
    count_.set(jvps + 1);
  }
  void release() {
    const int64_t jvps = count_.get() - 1;
    count_.set(jvps);
    if (jvps == 0 && opened_by_us_) {
      torch::autograd::forward_ad::exit_dual_level(0);
      current_.set(-1);
      opened_by_us_ = false;
    }
  }
  // Whether the user has opened one, on any thread: tensors outside layers may then have tangents.
  bool is_of_others() const {
    return !opened_by_us_ && current_.get() >= 0;
  }

 private:
  // An integer global of a Python module.
  class Global {
   public:
    Global(const char* module, const char* name)
        : names_(imported(module, "__dict__")),
          name_(py::reinterpret_steal<py::str>(PyUnicode_InternFromString(name))) {
      imported(module, name); // raises in words if torch lacks it
    }
    int64_t get() const {
      return names_[name_].cast<int64_t>();
    }
    void set(int64_t value) {
      const WritesNoStep quiet(names_);
      names_[name_] = value;
    }

   private:
    py::dict names_;
    py::str name_;
  };

  Global count_{"torch._functorch.eager_transforms", "JVP_NESTING"};
  Global current_{"torch.autograd.forward_ad", "_current_level"};
  bool opened_by_us_ = false;
};

const char* name_of(ErrorClass error_class) {
  switch (error_class) {
    case ErrorClass::BatchedOperator:
      return "BatchedOperatorError";
    case ErrorClass::BatchedValue:
      return "BatchedValueError";
    case ErrorClass::EscapedTensor:
      return "EscapedTensorError";
    case ErrorClass::InPlace:
      return "InPlaceError";
    case ErrorClass::Randomness:
      return "RandomnessError";
    case ErrorClass::Transform:
      return "TransformError";
  }
  return "";
}

class RaisedError final : public torch::PyTorchError, public LayerError {
 public:
  RaisedError(ErrorClass of, const std::string& text, bool said_again) : PyTorchError(text) {
    error_class = of;
    was_said_again = said_again;
  }
  const std::string& text() const override {
    return msg;
  }
  void add_context(const std::string& context) override {
    msg += " (" + context + ")";
  }
  PyObject* python_type() override { // called with the GIL
    return imported("torchlayers.core.errors", name_of(error_class)).ptr();
  }
};

// Creates a Python class for a node type, with only the attributes of all torch nodes: torch's own
// class of that name would read fields of the node that ours does not have.
void name_type(const std::type_info& type, const std::string& name) {
  const py::gil_scoped_acquire gil;
  auto* shown = new PyTypeObject(); // never freed, nor is its name, as for torch's
  torch::autograd::_initFunctionPyTypeObject(
      *shown, (new std::string(name))->c_str(), nullptr, nullptr);
  torch::autograd::registerCppFunction(type, shown);
  // Registered with Node, so that isinstance works as for torch's.
  imported("torch.autograd.graph", "Node")
      .attr("register")(py::handle(reinterpret_cast<PyObject*>(shown)));
}

bool decompose_in_python(const Operator& op, Args& args) {
  // An operator that decomposes to itself in the end (torch's, by way of a prim) has no
  // decomposition.
  thread_local std::vector<const Operator*> under_way;
  if (std::ranges::find(under_way, &op) != under_way.end()) {
    return false;
  }
  under_way.push_back(&op);
  const auto is_done = c10::make_scope_exit([] { under_way.pop_back(); });
  py::gil_scoped_acquire gil;
  const py::object function = imported("torchlayers.transforms.decompositions", "find")(
      op.schema().name(), op.schema().overload_name());
  if (function.is_none()) {
    return false;
  }
  const Args own = last(args, op.num_args).vec();
  const auto [positional, keywords] = python_arguments(op.schema(), own, /*with_nones=*/false);
  Args results = results_from_python(op, function(*positional, **keywords), "the decomposition of");
  drop(args, op.num_args);
  args.insert(args.end(), results.begin(), results.end());
  return true;
}

bool draw_in_python(
    const Operator& op,
    Args& args,
    const std::string& who,
    const std::function<at::Tensor()>& next_key) {
  const py::gil_scoped_acquire gil;
  const Args own = last(args, op.num_args).vec();
  const auto [positional, keywords] = python_arguments(op.schema(), own, /*with_nones=*/false);
  const py::object function = imported("torchlayers.random.aten_samplers", "find_sampler")(
      op.schema().name(), op.schema().overload_name(), positional, keywords, who);
  if (function.is_none()) {
    return false;
  }
  Args results = results_from_python(
      op, function(next_key(), *positional, **keywords), "what draws by a key for");
  drop(args, op.num_args);
  args.insert(args.end(), results.begin(), results.end());
  return true;
}

std::shared_ptr<void> draw_apart(const at::Tensor& tensor) {
  const py::gil_scoped_acquire gil;
  py::object end = imported("torchlayers.distributed.rank_rng", "begin_per_rank_draws")(tensor);
  if (end.is_none()) {
    return nullptr;
  }
  return {end.release().ptr(), [](void* end) {
            const py::gil_scoped_acquire gil;
            const auto call = py::reinterpret_steal<py::object>(static_cast<PyObject*>(end));
            call();
          }};
}

int64_t rank_in_group(const c10::IValue& group) {
  const py::gil_scoped_acquire gil;
  return py::module_::import("torchlayers.transforms.decompositions.collectives")
      .attr("rank_in_group")(torch::jit::toPyObject(group))
      .cast<int64_t>();
}

// Gives tensors the attributes of DTensors when there is one.
void met_subclass(const at::Tensor& tensor) {
  const py::gil_scoped_acquire gil;
  if (any_attribute_added()) {
    return;
  }
  imported("torchlayers.distributed.dtensor_calls", "note_dtensor")(tensor);
}

} // namespace

void supply_callbacks() {
  callbacks.python_is_running = [] { return PyGILState_Check() == 1; };
  callbacks.python_location = [] {
    py::gil_scoped_acquire gil;
    try {
      return imported("torchlayers.core.errors", "location")().cast<std::string>();
    } catch (const py::error_already_set&) {
      return std::string();
    }
  };
  callbacks.raise = [](ErrorClass error_class, const std::string& text, bool was_said_again) {
    throw RaisedError(error_class, text, was_said_again);
  };
  callbacks.raise_if_interrupted = [] {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) {
      throw py::error_already_set();
    }
  };
  callbacks.hold_dual_level = [] { DualLevel::instance().hold(); };
  callbacks.release_dual_level = [] { DualLevel::instance().release(); };
  callbacks.decompose = &decompose_in_python;
  callbacks.draw = &draw_in_python;
  callbacks.draw_apart = &draw_apart;
  callbacks.rank_in_group = &rank_in_group;
  callbacks.met_subclass = &met_subclass;
  callbacks.name_type_of_nodes = &name_type;
}

void bind_dual_level(py::module_& m) {
  m.def("any_dual_level_of_others", [] { return DualLevel::instance().is_of_others(); });
}

} // namespace torchlayers
