// Saved-tensor hooks (torch.autograd.graph.saved_tensors_hooks), called when levels save tensors.
#include <ATen/SavedTensorHooks.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "core/callbacks.h"
#include "core/patches.h"
#include "core/saved_stack.h"
#include "core/skip_autograd.h"
#include "core/stack.h"
#include "python/bindings.h"
#include "python/hooks/saved_hooks.h"
#include "python/tree.h"
#include "reverse/packed_residuals.h"
#include "reverse/pass.h"
#include "values/history.h"
#include "values/saved_version.h"
#include "values/wrapper.h"
#include "values/wrapper_chain.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

// The result of `pack`, and the properties of the tensor besides its numbers.
struct PackedTensor {
  const at::Tensor& checked_itself() const {
    version.check([] { return "a gradient"; });
    return itself;
  }

  at::Tensor itself; // if nothing is saved in its place
  SavedVersion version;
  std::shared_ptr<Kept> kept;
  std::shared_ptr<const StackCopy> stack;
  History history;
};

// While alive, sets the thread's dispatch keys to those with which the user called the operator
// that the top layer is processing.
class KeysOfCaller {
 public:
  KeysOfCaller() : keys_(thread_keys()) {
    const Layer* layer = top_layer();
    if (const auto* processing = layer != nullptr ? Processing::of(*layer) : nullptr) {
      thread_keys() = processing->keys_outside();
    }
  }
  ~KeysOfCaller() {
    thread_keys() = keys_;
  }
  KeysOfCaller(const KeysOfCaller&) = delete;
  KeysOfCaller& operator=(const KeysOfCaller&) = delete;

 private:
  c10::impl::PODLocalDispatchKeySet keys_;
};

// While alive, lets torch.utils.checkpoint know which tensors are unpacked in one backward pass of
// ours, so that it recomputes them once. Without a group it asks the engine, which is not running.
class GroupOfPass {
 public:
  GroupOfPass() {
    const auto torch = py::module_::import("torch._C");
    if (number_of_pass() == 0 || torch::autograd::get_current_graph_task_id() != -1 ||
        !py::hasattr(torch, "_set_graph_exec_group") ||
        !torch.attr("_get_graph_exec_group")().is_none()) {
      return;
    }
    set_ = torch.attr("_set_graph_exec_group");
    set_(number_of_pass());
  }
  ~GroupOfPass() {
    if (set_) {
      set_(py::none());
    }
  }
  GroupOfPass(const GroupOfPass&) = delete;
  GroupOfPass& operator=(const GroupOfPass&) = delete;

 private:
  py::object set_;
};

// While another tracer captures a program to be compiled, a recomputation would be captured too,
// and would draw different random numbers in every call.
bool may_recompute() {
  using Modes = c10::impl::TorchDispatchModeTLS;
  return !Modes::get_mode(c10::impl::TorchDispatchModeKey::PROXY).has_value() ||
         imported("torchlayers.fx.recomputation", "is_recomputation_allowed")().cast<bool>();
}

// The return value of a user's `pack`.
struct KeptInPython : Kept {
  explicit KeptInPython(py::object given) : packed(std::move(given)) {}
  ~KeptInPython() override {
    const py::gil_scoped_acquire gil;
    packed = py::object();
  }
  KeptInPython(const KeptInPython&) = delete;
  KeptInPython& operator=(const KeptInPython&) = delete;

  py::object packed;
};

class HooksOfUser : public SavedHooks {
 public:
  HooksOfUser(py::object pack, py::object unpack)
      : SavedHooks(!py::hasattr(pack, "remakes_tangents")),
        are_checkpoints_(
            py::getattr(pack, "__module__", py::none()).equal(py::str("torch.utils.checkpoint"))),
        pack_(std::move(pack)),
        unpack_(std::move(unpack)) {}

  std::shared_ptr<Kept> pack(at::Tensor& tensor, int64_t) override {
    const py::gil_scoped_acquire gil;
    const KeysOfCaller keys;
    // A transform that the checkpointed function calls unpacks what it saves before that returns.
    const bool is_inside = mirror().size() > stack()->size();
    if (are_checkpoints_ && (is_inside || !may_recompute())) {
      tensor = without_graphs(tensor);
      return nullptr;
    }
    return std::make_shared<KeptInPython>(pack_(tensor));
  }

  at::Tensor unpack(Kept& kept, const StackCopy& stack) override {
    const py::gil_scoped_acquire gil;
    const GroupOfPass group;
    const Patched patched;
    const OnSavedStack earlier(stack);
    const modules::PutInAgain in_modules(this->in_modules());
    const py::object found = unpack_(static_cast<KeptInPython&>(kept).packed);
    if (!THPVariable_Check(found.ptr())) {
      throw torch::TypeError(
          "torchlayers: the unpack hook of saved_tensors_hooks must return a tensor, got " +
          std::string(py::str(py::type::of(found).attr("__name__"))) + ".");
    }
    return THPVariable_Unpack(found.ptr());
  }

  py::object attribute(const std::string& name) const override {
    return pack_.attr(name.c_str());
  }

 private:
  bool are_checkpoints_; // of torch.utils.checkpoint
  py::object pack_, unpack_;
};

PackedTensor pack(SavedHooks& hooks, const at::Tensor& tensor, int64_t saved_by) {
  // A transform inside the hooks' block, or an enclosing one, may be running above those.
  const bool is_inner = mirror().size() > hooks.stack()->size();
  PackedTensor packed{
      tensor,
      SavedVersion(tensor),
      nullptr,
      is_inner ? to_run_on_later(mirror()) : hooks.stack(),
      History(tensor, saved_by, hooks.keeps_tangents())};
  packed.kept = hooks.pack(packed.itself, saved_by);
  if (packed.kept != nullptr) {
    packed.itself = at::Tensor();
  }
  return packed;
}

at::Tensor unpack(SavedHooks& hooks, const PackedTensor& packed) {
  const at::Tensor numbers =
      packed.kept == nullptr ? packed.checked_itself() : hooks.unpack(*packed.kept, *packed.stack);
  return packed.history.given_to(numbers, *packed.stack);
}

// The hooks as Python objects, which torch calls.
struct Pack {
  py::object attribute(const std::string& name) const {
    return hooks->attribute(name);
  }

  std::shared_ptr<SavedHooks> hooks;
};
struct Unpack {
  std::shared_ptr<SavedHooks> hooks;
};

// The hooks of one tensor saved by one of our nodes.
class OfNode : public torch::autograd::SavedVariableHooks {
 public:
  explicit OfNode(std::shared_ptr<SavedHooks> hooks) : hooks_(std::move(hooks)) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    packed_.emplace(pack(*hooks_, tensor, static_cast<int64_t>(mirror().size())));
  }
  at::Tensor call_unpack_hook() override {
    return unpack(*hooks_, *packed_);
  }

 private:
  std::shared_ptr<SavedHooks> hooks_;
  std::optional<PackedTensor> packed_;
};

// A tensor packed by the enclosing hooks, as for autograd's nodes, but without a node.
struct SavedByHooks {
  std::shared_ptr<SavedHooks> hooks;
  PackedTensor packed;
};

// The layers that were entered before the innermost pair of hooks was activated.
StackCopy stack_of_hooks() {
  StackCopy stack = whole_stack();
  const size_t count = saved_hooks_on();
  const auto first_inside = std::ranges::find_if(stack, [&](const auto& entry) {
    const Layer* layer = owner_of(entry);
    return layer != nullptr && layer->hooks_around() >= count;
  });
  stack.erase(first_inside, stack.end());
  return stack;
}

using Defaults = at::SavedTensorDefaultHooks;

py::handle innermost_pack() {
  return Defaults::get_tls_state().stack.top().first.ptr(getPyInterpreter());
}

// Activates the hooks, beyond the end of this function.
void put_on(const std::shared_ptr<SavedHooks>& hooks) {
  const auto object = [](auto&& caller) {
    return c10::SafePyObject(py::cast(std::move(caller)).release().ptr(), getPyInterpreter());
  };
  Defaults::lazy_initialize();
  Defaults::push_hooks(object(Pack{hooks}), object(Unpack{hooks}));
}

// The pair that was active when these hooks were activated, or None.
py::object pair_around(const SavedHooks& hooks) {
  auto pairs = Defaults::get_tls_state().stack;
  for (bool is_inside = true; !pairs.empty(); pairs.pop()) {
    const auto& [pack, unpack] = pairs.top();
    const py::handle python(pack.ptr(getPyInterpreter()));
    if (!is_inside) {
      return py::make_tuple(python, py::handle(unpack.ptr(getPyInterpreter())));
    }
    is_inside = !py::isinstance<Pack>(python) || python.cast<const Pack&>().hooks.get() != &hooks;
  }
  return py::none();
}

// Replaces the innermost pair by hooks of ours that call it.
void adopt() {
  const py::gil_scoped_acquire gil;
  if (!Defaults::is_enabled() || !any_saved_hooks() || py::isinstance<Pack>(innermost_pack())) {
    return;
  }
  const auto [pack, unpack] = Defaults::pop_hooks();
  const auto hooks = make_hooks<HooksOfUser>(
      py::reinterpret_borrow<py::object>(pack.ptr(getPyInterpreter())),
      py::reinterpret_borrow<py::object>(unpack.ptr(getPyInterpreter())));
  put_on(hooks);
  hooks->look_around();
}

// The active hooks, which have been adopted.
std::shared_ptr<SavedHooks> innermost() {
  const py::gil_scoped_acquire gil;
  const py::handle top = innermost_pack();
  return py::isinstance<Pack>(top) ? top.cast<const Pack&>().hooks : nullptr;
}

std::unique_ptr<torch::autograd::SavedVariableHooks> hooks_for_node() {
  if (Defaults::is_enabled() && any_saved_hooks() && !Defaults::get_tls_state().is_tracing) {
    if (auto hooks = innermost()) {
      return std::make_unique<OfNode>(std::move(hooks));
    }
  }
  return torch::autograd::Engine::get_default_engine().get_default_saved_variable_hooks();
}

SavedByHooks saved_by_hooks(const at::Tensor& tensor) {
  adopt();
  auto hooks = innermost();
  at::NoGradGuard no_grad;
  auto packed = pack(*hooks, tensor, SavedHooks::kArguments);
  return {std::move(hooks), std::move(packed)};
}

} // namespace

// Since 2.15 torch.utils.checkpoint looks for a user's hooks below its own, which it recognizes by
// these attributes. Our hooks are not the user's either.
py::object SavedHooks::attribute(const std::string& name) const {
  if (name == "_checkpoint_internal") {
    return py::bool_(true);
  }
  if (name == "_user_hooks") {
    return pair_around(*this);
  }
  throw py::attribute_error(name);
}

void SavedHooks::look_around() {
  stack_ = to_run_on_later(stack_of_hooks());
  in_modules_ = modules::put_in_now();
}

void HooksOn::enter() const {
  put_on(hooks_);
  hooks_->look_around();
}

void HooksOn::exit() {
  Defaults::pop_hooks();
}

void bind_saved_hooks(py::module_& m) {
  py::class_<SavedByHooks>(m, "SavedByHooks", "A tensor packed by the innermost hooks.")
      .def(py::init(&saved_by_hooks))
      .def("unpack", torch::wrap_pybind_function([](const SavedByHooks& self) {
             return unpack(*self.hooks, self.packed);
           }));
  py::class_<PackedTensor>(m, "PackedTensor", "The return value of a user's pack hook.");
  py::class_<Pack>(m, "Pack", "Calls a user's pack hook at the level that saves a tensor.")
      .def("__call__", torch::wrap_pybind_function([](const Pack& self, const at::Tensor& tensor) {
             return pack(*self.hooks, tensor, static_cast<int64_t>(mirror().size()));
           }))
      .def("__getattr__", &Pack::attribute);
  py::class_<Unpack>(
      m, "Unpack", "Calls a user's unpack hook on the layer stack on which it was activated.")
      .def(
          "__call__",
          torch::wrap_pybind_function([](const Unpack& self, const PackedTensor& packed) {
            return unpack(*self.hooks, packed);
          }));
  py::class_<HooksOn>(
      m, "HooksOn", "Context manager: inside, saved-tensor hooks of torchlayers are active.")
      .def("__enter__", torch::wrap_pybind_function(&HooksOn::enter))
      .def("__exit__", [](const HooksOn&, const py::args&) { HooksOn::exit(); });
  callbacks.adopt_saved_hooks = &adopt;
  saved_hooks_for_node = &hooks_for_node;
  m.def("adopt_saved_hooks", torch::wrap_pybind_function(&adopt));
  m.def("without_graphs", torch::wrap_pybind_function(&without_graphs));
  m.def("holder_of", torch::wrap_pybind_function(&holder_of));
  m.def("number_of_pass", &number_of_pass);
}

} // namespace torchlayers
