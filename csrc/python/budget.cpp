// C++ helpers of torchlayers/remat/budget.
#include "python/bindings.h"
#include "reverse/checkpoint_schedule.h"
#include "reverse/packed_residuals.h"
#include "values/wrapper_chain.h"

#include <pybind11/stl.h>

namespace torchlayers {
namespace {

namespace py = pybind11;

// A stage: (forward, saving, passing, saved, [(kept, running, again), …])
using StageOfPython =
    std::tuple<double, double, int64_t, int64_t, std::vector<std::tuple<int64_t, int64_t, double>>>;

ChainPlan made(
    const std::vector<StageOfPython>& given,
    std::vector<std::vector<int64_t>> between,
    int64_t budget) {
  std::vector<Stage> stages;
  for (const auto& [forward, saving, passing, saved, ways] : given) {
    Stage& stage = stages.emplace_back(Stage{forward, saving, passing, saved, {}});
    for (const auto& [kept, running, again] : ways) {
      stage.ways.push_back({kept, running, again});
    }
  }
  return {std::move(stages), std::move(between), budget};
}

py::tuple taken_apart(const at::Tensor& tensor) {
  std::vector<at::Tensor> numbers;
  auto shell = std::make_unique<Shell>(tensor, numbers);
  return py::make_tuple(std::move(shell), std::move(numbers));
}

// The dtype, sizes, strides and flags by which a tensor views its memory.
class Looks {
 public:
  explicit Looks(const at::Tensor& tensor)
      : dtype_(tensor.dtype()),
        sizes_(tensor.sizes()),
        strides_(tensor.strides()),
        offset_(tensor.storage_offset()),
        is_conj_(tensor.is_conj()),
        is_neg_(tensor.is_neg()) {}

  // A view of all of the tensor's memory, as one dimension.
  static Looks at_all_of(const at::Tensor& tensor) {
    Looks looks(tensor);
    const auto bytes = tensor.storage().nbytes();
    looks.sizes_ = {static_cast<int64_t>(bytes / tensor.element_size())};
    looks.strides_ = {1};
    looks.offset_ = 0;
    looks.is_conj_ = looks.is_neg_ = false;
    return looks;
  }

  bool operator==(const Looks&) const = default;

  // A tensor that views the memory of `base` in this way. Runs no operator.
  at::Tensor seen(const at::Tensor& base) const {
    const auto keys =
        base.key_set() -
        c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
    auto tensor =
        at::detail::make_tensor<c10::TensorImpl>(c10::Storage(base.storage()), keys, dtype_);
    auto* impl = tensor.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(sizes_, strides_);
    impl->set_storage_offset(offset_);
    tensor._set_conj(is_conj_);
    tensor._set_neg(is_neg_);
    return tensor;
  }

 private:
  caffe2::TypeMeta dtype_;
  c10::SmallVector<int64_t, 5> sizes_, strides_;
  int64_t offset_;
  bool is_conj_, is_neg_;
};

// Identifies the memory of a plain tensor; 0 if it can't be determined.
uintptr_t address_of_memory(const at::Tensor& tensor) {
  const bool is_plain = tensor.layout() == at::kStrided && tensor.has_storage() &&
                        !tensor.is_quantized() && !tensor.is_nested() &&
                        !tensor.key_set().has(c10::DispatchKey::Python);
  return is_plain ? reinterpret_cast<uintptr_t>(tensor.storage().unsafeGetStorageImpl()) : 0;
}

// A tensor with the same memory and version counter, but without an autograd history.
at::Tensor alias_of(const at::Tensor& tensor) {
  const c10::impl::ExcludeDispatchKeyGuard no_modes(c10::DispatchKey::Python);
  const auto& impl = tensor.getIntrusivePtr();
  return at::Tensor(impl->shallow_copy_and_detach(
      impl->version_counter(), /*allow_tensor_metadata_change=*/true));
}

} // namespace

void bind_budget(py::module_& m) {
  py::class_<Looks>(
      m, "Looks", "The dtype, sizes, strides and flags with which a tensor views its memory.")
      .def(py::init<const at::Tensor&>())
      .def_static("at_all_of", torch::wrap_pybind_function(&Looks::at_all_of))
      .def("__eq__", [](const Looks& one, const Looks& other) { return one == other; })
      .def("seen", torch::wrap_pybind_function(&Looks::seen));
  m.def("memory_of", &address_of_memory);
  m.def("alias_of", torch::wrap_pybind_function(&alias_of));
  py::class_<Shell>(m, "Shell", "The wrappers that layers have put around a tensor.")
      .def(
          "around",
          torch::wrap_pybind_function([](const Shell& self, std::vector<at::Tensor> numbers) {
            return self.around(numbers);
          }));
  m.def("taken_apart", torch::wrap_pybind_function(&taken_apart));
  m.def("packs_result", &packs_result);
  py::class_<ChainPlan>(
      m, "ChainPlan", "Which tensors of a chain of stages to save within a memory budget.")
      .def(py::init(&made))
      .def_property_readonly("least", &ChainPlan::least)
      .def_property_readonly("cost", &ChainPlan::cost)
      .def("first", &ChainPlan::first);
}

} // namespace torchlayers
