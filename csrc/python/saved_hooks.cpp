// Saved-tensor hooks (torch.autograd.graph.saved_tensors_hooks), which torch and we call where a
// level records.
#include <ATen/SavedTensorHooks.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "core/earlier_stack.h"
#include "core/hooks.h"
#include "core/recording.h"
#include "core/stack.h"
#include "python/bindings.h"
#include "python/module_dicts.h"
#include "reverse/pass.h"
#include "values/history.h"
#include "values/shell.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

// A user's pair of hooks, the stack that they were written in, and the tensors that modules were
// called with there. NOTE [Where a hook runs].
struct HooksOfUser {
  py::object pack, unpack;
  std::shared_ptr<const StackCopy> stack;
  modules::Replacements in_modules;
  bool keeps_tangents;  // as what `unpack` returns has none, as a rule
  bool are_checkpoints; // of torch.utils.checkpoint
};

// What `pack` has returned, and what its tensor was besides its numbers.
struct PackedTensor {
  py::object packed;
  std::shared_ptr<const StackCopy> stack;
  History history;
  bool is_itself; // `pack` was not asked
};

// While it lives, the thread's keys are those that the user called the operator with which the
// layer on top is processing.
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

// While it lives, torch.utils.checkpoint knows which tensors are unpacked in one pass of ours, and
// recomputes them once. It asks the engine, which does not run, unless it finds a group.
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

// While a program is recorded to be compiled, a recomputation would be recorded too, and draw
// random numbers of its own in every call.
bool is_recording() {
  return c10::impl::TorchDispatchModeTLS::get_mode(c10::impl::TorchDispatchModeKey::PROXY)
      .has_value();
}

PackedTensor pack(const HooksOfUser& hooks, const at::Tensor& tensor, int64_t kept_at) {
  const KeysOfCaller keys;
  // A transform inside the hooks' block, or around it, may be at work above those.
  const bool is_inner = mirror().size() > hooks.stack->size();
  auto stack = is_inner ? std::make_shared<const StackCopy>(mirror()) : hooks.stack;
  History history(tensor, kept_at, hooks.keeps_tangents);
  if (hooks.are_checkpoints && is_recording()) {
    return {py::cast(without_graphs(tensor)), std::move(stack), std::move(history), true};
  }
  return {hooks.pack(tensor), std::move(stack), std::move(history), false};
}

at::Tensor unpack(const HooksOfUser& hooks, const PackedTensor& packed) {
  py::object found = packed.packed;
  if (!packed.is_itself) {
    const GroupOfPass group;
    const OnEarlierStack earlier(*packed.stack);
    const modules::PutInAgain in_modules(hooks.in_modules);
    found = hooks.unpack(packed.packed);
  }
  if (!THPVariable_Check(found.ptr())) {
    throw py::type_error(
        "torchlayers: the unpack hook of saved_tensors_hooks must return a tensor, got " +
        std::string(py::str(py::type::of(found).attr("__name__"))) + ".");
  }
  return packed.history.given_to(THPVariable_Unpack(found.ptr()), *packed.stack);
}

// As Python's hooks are called: by torch.
struct Pack {
  std::shared_ptr<const HooksOfUser> hooks;
};
struct Unpack {
  std::shared_ptr<const HooksOfUser> hooks;
};

// A tensor that the hooks around have packed, as autograd's nodes have theirs; of no node.
struct SavedByHooks {
  std::shared_ptr<const HooksOfUser> hooks;
  PackedTensor packed;
};

// The layers that were entered before the innermost pair of hooks was put on.
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

// Puts hooks of ours in the place of the innermost pair, which call those.
void adopt() {
  using Defaults = at::SavedTensorDefaultHooks;
  const py::gil_scoped_acquire gil;
  const py::handle top = Defaults::get_tls_state().stack.top().first.ptr(getPyInterpreter());
  if (!Defaults::is_enabled() || py::isinstance<Pack>(top)) {
    return;
  }
  auto stack = std::make_shared<const StackCopy>(stack_of_hooks());
  const auto [pack, unpack] = Defaults::pop_hooks();
  const auto hooks = std::make_shared<HooksOfUser>(HooksOfUser{
      py::reinterpret_borrow<py::object>(pack.ptr(getPyInterpreter())),
      py::reinterpret_borrow<py::object>(unpack.ptr(getPyInterpreter())),
      std::move(stack),
      modules::put_in_now(),
      true,
      false});
  hooks->keeps_tangents = !py::hasattr(hooks->pack, "remakes_tangents");
  hooks->are_checkpoints =
      py::getattr(hooks->pack, "__module__", py::none()).equal(py::str("torch.utils.checkpoint"));
  Defaults::push_hooks(
      c10::SafePyObject(py::cast(Pack{hooks}).release().ptr(), getPyInterpreter()),
      c10::SafePyObject(py::cast(Unpack{hooks}).release().ptr(), getPyInterpreter()));
}

SavedByHooks saved_by_hooks(const at::Tensor& tensor) {
  adopt();
  const py::handle top =
      at::SavedTensorDefaultHooks::get_tls_state().stack.top().first.ptr(getPyInterpreter());
  const auto& hooks = top.cast<const Pack&>().hooks;
  at::NoGradGuard no_grad;
  return {hooks, pack(*hooks, tensor, /*kept_at=*/-1)};
}

} // namespace

void bind_saved_hooks(py::module_& m) {
  py::class_<SavedByHooks>(m, "SavedByHooks", "A tensor that the innermost hooks have packed.")
      .def(py::init(&saved_by_hooks))
      .def("unpack", torch::wrap_pybind_function([](const SavedByHooks& self) {
             return unpack(*self.hooks, self.packed);
           }));
  py::class_<PackedTensor>(m, "PackedTensor", "What a user's pack hook has returned.");
  py::class_<Pack>(m, "Pack", "Calls a user's pack hook at the level that saves a tensor.")
      .def("__call__", torch::wrap_pybind_function([](const Pack& self, const at::Tensor& tensor) {
             return pack(*self.hooks, tensor, static_cast<int64_t>(mirror().size()));
           }));
  py::class_<Unpack>(m, "Unpack", "Calls a user's unpack hook on the stack that it was put on in.")
      .def(
          "__call__",
          torch::wrap_pybind_function([](const Unpack& self, const PackedTensor& packed) {
            return unpack(*self.hooks, packed);
          }));
  hooks.adopt_saved_hooks = &adopt;
  m.def("adopt_saved_hooks", torch::wrap_pybind_function(&adopt));
  m.def("without_graphs", torch::wrap_pybind_function(&without_graphs));
  m.def("holder_of", torch::wrap_pybind_function(&holder_of));
  m.def("number_of_pass", &number_of_pass);
}

} // namespace torchlayers
