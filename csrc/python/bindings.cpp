// The extension module torchlayers._C. Only this folder uses Python.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <ATen/FunctionalTensorWrapper.h>

#include <algorithm>
#include <bitset>
#include <string_view>

#include "core/keys.h"
#include "core/saved_stack.h"
#include "core/stack.h"
#include "dispatch/fallbacks.h"
#include "dispatch/tensor_methods.h"
#include "layers/captured.h"
#include "layers/custom_function.h"
#include "layers/level_views.h"
#include "layers/random/keyed_draws.h"
#include "layers/transforms.h"
#include "layers/vmap/vmap.h"

#include "python/bindings.h"
#include "python/compiled/compiled_call.h"
#include "python/compiled/program.h"
#include "python/modules/module_forward.h"
#include "python/modules/modules.h"
#include "python/patches/coo_tensor.h"
#include "python/patches/function_apply.h"
#include "python/patches/indexing.h"
#include "python/patches/new_tensors.h"
#include "python/patches/patches.h"
#include "python/patches/requires_grad.h"
#include "rules/collectives/axes.h"
#include "rules/random/philox.h"
#include "values/escaped.h"
#include "values/local_storages.h"
#include "values/strided_region.h"
#include "values/tangent.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

namespace py = pybind11;
using torch::wrap_pybind_function;

// (kind, level, metadata) of each layer, outermost first; None for those of torch.func.
py::list current_stack() {
  py::list stack;
  for (const auto& layer : layers_on_stack()) {
    if (layer == nullptr) {
      stack.append(py::none());
      continue;
    }
    py::dict metadata;
    for (auto& [name, value] : layer->metadata()) {
      metadata[name.c_str()] = torch::jit::toPyObject(std::move(value));
    }
    stack.append(py::make_tuple(layer->kind(), layer->level(), metadata));
  }
  return stack;
}

// (kind, level) of the layer on top, or None if it is not one of ours.
py::object top() {
  const Layer* layer = top_layer();
  return layer ? py::object(py::make_tuple(layer->kind(), layer->level())) : py::none();
}

template <class Is>
bool any_on_stack(const Is& is) {
  const auto layers = layers_on_stack();
  return std::any_of(layers.begin(), layers.end(), is);
}

bool is_functionalize(const Layer* layer) {
  return layer != nullptr && std::string_view(layer->kind()) == "functionalize";
}

// A guard that is alive from the beginning of a `with` block to its end.
template <class Guard, class... Given, class... Named>
void bind_guard(py::module_& m, const char* name, const char* doc, const Named&... named) {
  struct Block {
    std::tuple<Given...> given;
    std::optional<Guard> guard;
  };
  const auto emplace = [](Block& block) {
    std::apply([&](const Given&... given) { block.guard.emplace(given...); }, block.given);
  };
  py::class_<Block>(m, name, doc)
      .def(py::init([](Given... given) { return new Block{{given...}, {}}; }), named...)
      .def("__enter__", wrap_pybind_function(emplace))
      .def("__exit__", [](Block& block, const py::args&) { block.guard.reset(); });
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
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(std::move(thrown));
    } catch (torch::PyTorchError& error) { // NOTE [Errors with a class]
      PyErr_SetString(error.python_type(), error.what());
    }
  });
  supply_callbacks();
  supply_node_callbacks();
  bind_entries(m);
  bind_custom_layers(m);
  bind_index_sets(m);
  bind_calls(m);
  bind_steps(m);
  bind_saved_hooks(m);
  bind_tensor_hooks(m);
  bind_checkpoint(m);
  bind_random_state(m);
  bind_budget(m);
  bind_ran_code(m);
  bind_modules(m);
  bind_programs(m);
  bind_compiled_call(m);
  bind_cut_graph(m);
  bind_coloring(m);
  bind_dual_level(m);
  bind_patches(m);
  bind_function_apply(m);
  add_patch(&use_our_tensor_methods);
  patch_subscripts();
  patch_script_calls();
  patch_requires_grad();
  patch_new_tensors();
  patch_coo_tensor(m);
  modules::patch_calls();
  bind_requires_grad(m);

  m.def("current_stack", wrap_pybind_function(&current_stack));
  m.def("describe_stack", wrap_pybind_function(&describe_stack));

  bind_guard<FunctionsOfOneLevel>(
      m, "OneLevel", "Inside, only Functions at the level of the top layer may run.");
  bind_guard<BelowForFunction, bool>(
      m,
      "Below",
      "Inside, the top layer is removed from the stack; with True, so is a vmap entered again for "
      "it.",
      py::arg("enters_again") = false);
  bind_guard<RunsBackward>(m, "RunsBackward", "Inside, a Function computes its gradients.");
  bind_guard<RunsJvp>(m, "RunsJvp", "Inside, the Function being applied computes its tangents.");
  bind_guard<ComparingRanks>(
      m,
      "ComparingRanks",
      "Inside, collectives of named axes check that all ranks call the same collective.");
  m.def("any_layer", wrap_pybind_function(&any_layer));
  m.def("top", wrap_pybind_function(&top));

  // (number, draws so far) of each layer on the stack that draws by a key, outermost first, and the
  // key of the last one if it belongs to `seeded`. NOTE [Drawing by a key].
  m.def("draws", [] {
    std::vector<std::pair<uint64_t, int64_t>> all;
    std::optional<at::Tensor> key;
    for (Layer* layer : layers_on_stack()) {
      if (const Draws* draws = draws_of(layer)) {
        all.emplace_back(layer->number(), draws->count);
        key = draws->of_samples() ? std::nullopt : std::optional(draws->key());
      }
    }
    return std::make_pair(all, key);
  });
  m.def("set_draws", [](const std::vector<int64_t>& counts) {
    size_t i = 0;
    for (Layer* layer : layers_on_stack()) {
      Draws* draws = draws_of(layer);
      if (draws != nullptr && i < counts.size()) {
        draws->count = counts[i++];
      }
    }
  });
  // How often the layers on the stack have drawn by key; unlike counts, it only grows.
  m.def("draws_ever_made", [] {
    int64_t made = 0;
    for (Layer* layer : layers_on_stack()) {
      if (const Draws* draws = draws_of(layer)) {
        made += draws->ever_made;
      }
    }
    return made;
  });
  // The key for a draw by the layer on top; None if that layer does not draw by a key.
  m.def("next_key", wrap_pybind_function([]() -> std::optional<at::Tensor> {
          Layer* layer = top_layer();
          Draws* draws = draws_of(layer);
          if (draws == nullptr) {
            return std::nullopt;
          }
          at::Tensor key;
          {
            const BelowForFunction below;
            key = draws->next_key();
          }
          return draws->on(*layer, std::move(key));
        }));
  m.def("philox", [](philox::Words counter, std::array<uint32_t, 2> key) {
    return philox::block(counter, key);
  });

  m.def("lift", wrap_pybind_function([](const at::Tensor& tensor) {
          const at::Tensor lifted = lift(tensor, entered_layer());
          keep_tangent_for_hooks(lifted);
          return lifted;
        }));

  // Whether the tensor is a wrapper around a tensor from outside the transform.
  m.def("is_captured", [](const at::Tensor& tensor) {
    const auto* wrapper = wrapper_of(tensor);
    return wrapper != nullptr && wrapper->is_immutable();
  });

  m.def("check_from_outside", wrap_pybind_function([](const at::Tensor& tensor) {
          check_from_outside(tensor, entered_layer());
        }));
  m.def("add_front_key", wrap_pybind_function(&add_front_key));
  m.def("seen_from", wrap_pybind_function(&seen_from));
  m.def("sample_of", wrap_pybind_function(&sample_of));
  m.def("held_at", wrap_pybind_function([](const at::Tensor& tensor, int64_t level) {
          const auto [held, hold] = held_at(tensor, level);
          std::vector<int64_t> dims;
          for (const auto& samples : hold.samples) {
            dims.push_back(samples.dim);
          }
          return std::pair(held, dims);
        }));
  // f(), with only the layers up to that level.
  m.def("at_level", wrap_pybind_function([](int64_t level, const py::function& f) {
          const OnSavedStack outside(
              StackCopy(mirror().begin(), mirror().begin() + level), at::GradMode::is_enabled());
          return f();
        }));
  m.def("wrap_returned", wrap_pybind_function([](const at::Tensor& tensor) {
          return wrap_argument(resolve_returned(tensor));
        }));
  m.def("unwrap", wrap_pybind_function(&unwrap));
  m.def("value_of_operand", wrap_pybind_function([](const at::Tensor& tensor, int64_t level) {
          FunctionsOfOneLevel::note_operand(tensor);
          return unwrap(tensor, level);
        }));
  m.def("is_batched", wrap_pybind_function([](const at::Tensor& tensor, int64_t level) {
          const auto* batched = at::functorch::maybeGetBatchedImpl(shown_at(tensor, level));
          return batched != nullptr && batched->level() == level;
        }));
  m.def("share_memory", wrap_pybind_function([](const at::Tensor& one, const at::Tensor& other) {
          return memory_of(one) != nullptr && memory_of(one) == memory_of(other);
        }));
  m.def("shown", wrap_pybind_function(&shown));
  m.def("shown_at", wrap_pybind_function(&shown_at));
  // A value passed to or returned by a Function, and its batch dimension at this level, or None.
  m.def(
      "unbatched",
      wrap_pybind_function(
          [](const at::Tensor& tensor,
             int64_t level) -> std::pair<at::Tensor, std::optional<int64_t>> {
            const at::Tensor value =
                shown_at(resolve_captured(without_dead_wrappers(tensor)), level);
            const auto* batched = at::functorch::maybeGetBatchedImpl(value);
            if (batched == nullptr || batched->level() != level) {
              return {value, std::nullopt};
            }
            return {without_dead_wrappers(batched->value()), batched->bdim()};
          }));
  // For the vmap of this level: the number of the vmap for which it was entered again, or 0.
  m.def("again_of", [](int64_t level) {
    const auto* vmap = dynamic_cast<const VmapLayer*>(layer_at(level));
    return vmap != nullptr ? vmap->again_of() : 0;
  });
  m.def("was_made_inside", [](const at::Tensor& tensor, int64_t level) {
    const Layer* layer = layer_at(level);
    return layer != nullptr && layer->local_storages() != nullptr &&
           layer->local_storages()->has_made(tensor);
  });
  m.def("add_batch_dim", wrap_pybind_function(&add_batch_dim));
  m.def(
      "note_made",
      [](const std::vector<at::Tensor>& results,
         const std::vector<at::Tensor>& given,
         int64_t level) {
        const Layer* layer = layer_at(level);
        if (layer == nullptr || layer->local_storages() == nullptr) {
          return;
        }
        LocalStorages::Memories memories;
        for (const at::Tensor& each : given) {
          memories.append(LocalStorages::memories_of(each, level));
        }
        for (const at::Tensor& each : results) {
          layer->local_storages()->note(each, memories);
        }
      });
  m.def("batched_levels", [](const at::Tensor& tensor) {
    return batched_levels(tensor).to_ullong(); // one bit per level
  });
  m.def("concerns", [](const at::Tensor& tensor, uint64_t levels, int64_t below) {
    return concerns(tensor, levels, below);
  });
  // Whether the tensor is batched at this level, and its value is not batched at any of those
  // levels.
  m.def("is_batched_alone", [](const at::Tensor& tensor, int64_t level, uint64_t levels) {
    const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
    return batched != nullptr && batched->level() == level &&
           (batched_levels(batched->value()) & std::bitset<64>(levels)).none() &&
           !at::functionalization::impl::isFunctionalTensor(holder_of(batched->value()));
  });
  m.def("any_functionalize", [] { return any_on_stack(is_functionalize); });
  m.def("is_plain_stack", [] { // without torch.func's layers
    return !any_on_stack([](const Layer* layer) { return layer == nullptr; });
  });

  bind_trace(m);

  bind_operators(m);
  graph::bind(m);

  m.attr("FRONT_KEY") = c10::toString(kFront);
  m.attr("BACK_KEY") = c10::toString(kBack);
}
