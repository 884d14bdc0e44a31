// The extension module torchlayers._C: with this folder and graph/bindings.cpp all that knows
// Python.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "core/hooks.h"
#include "core/keys.h"
#include "core/stack.h"
#include "core/trace.h"
#include "dispatch/fallbacks.h"
#include "graph/bindings.h"
#include "layers/function.h"
#include "layers/functionalize.h"
#include "layers/transforms.h"
#include "layers/vmap.h"
#include "python/calls.h"
#include "python/compiled_call.h"
#include "python/entry.h"
#include "python/modules.h"
#include "python/nodes.h"
#include "python/operators.h"
#include "python/program.h"
#include "python/steps.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

namespace py = pybind11;
using torch::wrap_pybind_function;

// A layer of the stack as Python sees it: values, so that it can be kept.
struct LayerView {
  std::string owner;
  std::string kind;
  int64_t level;
  std::map<std::string, py::object> metadata;

  std::string repr() const {
    std::string text = kind + " (level " + std::to_string(level) + ", " + owner;
    for (const auto& [name, value] : metadata) {
      text += ", " + name + "=" + py::repr(value).cast<std::string>();
    }
    return text + ")";
  }
};

LayerView view_of(const Layer& layer) {
  LayerView view{"torchlayers", layer.kind(), layer.level(), {}};
  for (auto& [name, value] : layer.metadata()) {
    view.metadata[name] = torch::jit::toPyObject(std::move(value));
  }
  return view;
}

std::string torch_func_kind(at::functorch::TransformType type) {
  switch (type) {
    case at::functorch::TransformType::Vmap:
      return "vmap";
    case at::functorch::TransformType::Grad:
      return "grad";
    case at::functorch::TransformType::Jvp:
      return "jvp";
    case at::functorch::TransformType::Functionalize:
      return "functionalize";
    default:
      return "transform";
  }
}

std::vector<LayerView> current_stack() {
  std::vector<LayerView> views;
  const auto layers = layers_on_stack();
  for (size_t i = 0; i < layers.size(); ++i) {
    views.push_back(
        layers[i]
            ? view_of(*layers[i])
            : LayerView{
                  "torch.func", torch_func_kind(mirror()[i].key()), mirror()[i].layerId(), {}});
  }
  return views;
}

// The count of NOTE [One dual level]. torch.func's counter and forward_ad's notion of
// the current level are module globals. The GIL is held throughout, so no other thread
// and no signal handler comes between.
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

 private:
  // A number that a module keeps.
  class Global {
   public:
    Global(const char* module, const char* name)
        : names_(py::module_::import(module).attr("__dict__")),
          name_(py::reinterpret_steal<py::str>(PyUnicode_InternFromString(name))) {}
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

void supply_python() {
  hooks.python_is_running = [] { return PyGILState_Check() == 1; };
  hooks.python_location = [] {
    py::gil_scoped_acquire gil;
    try {
      return py::module_::import("torchlayers.errors").attr("location")().cast<std::string>();
    } catch (const py::error_already_set&) {
      return std::string();
    }
  };
  hooks.raise_if_interrupted = [] {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) {
      throw py::error_already_set();
    }
  };
  hooks.hold_dual_level = [] { DualLevel::instance().hold(); };
  hooks.release_dual_level = [] { DualLevel::instance().release(); };
}

// (kind, level) of the layer on top, or None where that is not ours.
py::object top() {
  const Layer* layer = top_layer();
  return layer ? py::object(py::make_tuple(layer->kind(), layer->level())) : py::none();
}

// (batch size, randomness) of the vmap on top.
py::tuple top_batch() {
  const auto* layer = dynamic_cast<const VmapLayer*>(top_layer());
  TORCH_INTERNAL_ASSERT(layer != nullptr);
  return py::make_tuple(*layer->batch_size(), randomness_name(layer->randomness()));
}

// Whether the functionalize on top keeps views.
bool keeps_views() {
  const auto* layer = dynamic_cast<const FunctionalizeLayer*>(top_layer());
  TORCH_INTERNAL_ASSERT(layer != nullptr);
  return layer->keeps_views();
}

// FunctionsOfOneLevel from `with` to its end.
struct OneLevel {
  std::optional<FunctionsOfOneLevel> guard;
  void enter() {
    guard.emplace();
  }
  void leave() {
    guard.reset();
  }
};

// From `with` to its end, the Function being applied runs its jvp.
struct RunsJvp {
  const FunctionsOfOneLevel* function = nullptr;
  void enter() {
    function = FunctionsOfOneLevel::innermost();
    if (function != nullptr) {
      function->set_runs_jvp(true);
    }
  }
  void leave() {
    if (function != nullptr) {
      function->set_runs_jvp(false);
    }
  }
};

template <class E>
void bind_guard(py::module_& m, const char* name, const char* doc) {
  py::class_<E>(m, name, doc)
      .def(py::init<>())
      .def("__enter__", wrap_pybind_function([](E& guard) { guard.enter(); }))
      .def("__exit__", [](E& guard, const py::object&, const py::object&, const py::object&) {
        guard.leave();
      });
}

} // namespace
} // namespace torchlayers

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace torchlayers;
  try {
    claim_keys();
  } catch (const c10::Error& error) {
    throw py::import_error(error.what_without_backtrace());
  }
  supply_python();
  supply_names_of_nodes();

  bind_entries(m);
  bind_calls(m);
  bind_steps(m);
  bind_modules(m);
  bind_programs(m);
  bind_compiled_call(m);

  py::class_<LayerView>(m, "Layer", "A layer of the stack, as it was when asked for.")
      .def_readonly("owner", &LayerView::owner)
      .def_readonly("kind", &LayerView::kind)
      .def_readonly("level", &LayerView::level)
      .def_readonly("metadata", &LayerView::metadata)
      .def("__repr__", &LayerView::repr);
  m.def("current_stack", wrap_pybind_function(&current_stack));
  m.def("describe_stack", wrap_pybind_function(&describe_stack));

  bind_guard<OneLevel>(m, "OneLevel", "Inside, Functions of the top layer's level alone may run.");
  bind_guard<BelowForFunction>(m, "Below", "Inside, the top layer is off the stack.");
  bind_guard<RunsJvp>(m, "RunsJvp", "Inside, the Function being applied computes its tangents.");
  m.def("any_layer", wrap_pybind_function(&any_layer));
  m.def("top", wrap_pybind_function(&top));
  m.def("top_batch", wrap_pybind_function(&top_batch));
  m.def("keeps_views", wrap_pybind_function(&keeps_views));
  m.def("lift", wrap_pybind_function([](const at::Tensor& tensor) {
          return lift(tensor, entered_layer());
        }));

  // Whether it is a wrapper that was made of a tensor from outside the transform.
  m.def("is_captured", [](const at::Tensor& tensor) {
    const auto* wrapper = wrapper_of(tensor);
    return wrapper != nullptr && wrapper->is_immutable();
  });

  m.def("check_from_outside", wrap_pybind_function([](const at::Tensor& tensor) {
          check_from_outside(tensor, entered_layer());
        }));
  m.def("wrap_argument", wrap_pybind_function(&wrap_argument));
  m.def("unwrap", wrap_pybind_function(&unwrap));
  m.def("is_batched", [](const at::Tensor& tensor, int64_t level) {
    const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
    return batched != nullptr && batched->level() == level;
  });
  m.def("add_batch_dim", wrap_pybind_function(&add_batch_dim));

  py::class_<TraceEvent>(m, "TraceEvent", "One step of one operator through one layer.")
      .def_readonly("step", &TraceEvent::step)
      .def_readonly("op", &TraceEvent::op)
      .def_readonly("layer", &TraceEvent::layer)
      .def_readonly("level", &TraceEvent::level)
      .def("__repr__", [](const TraceEvent& event) {
        return event.layer + " " + event.step + " " + event.op;
      });
  m.def("start_recording", &start_recording);
  m.def("stop_recording", &stop_recording);

  bind_operators(m);
  graph::bind(m);

  m.attr("FRONT_KEY") = c10::toString(kFront);
  m.attr("BACK_KEY") = c10::toString(kBack);
}
