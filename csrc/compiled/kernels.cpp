#include "compiled/kernels.h"

#include <ATen/EmptyTensor.h>
#include <torch/csrc/inductor/inductor_ops.h>

#include <array>
#include <utility>

#include "compiled/loop_plan.h"
#include "compiled/matmul_backend.h"
#include "compiled/strides.h"

namespace torchlayers::compiled {
namespace {

// Kernels take addresses and, after them or between, 64-bit sizes by value, which are passed in
// place of an address.
char* in_place_of_address(int64_t size) {
  return reinterpret_cast<char*>(size); // NOLINT(performance-no-int-to-ptr)
}

// A tensor that a step reads, or a size.
class Read {
 public:
  explicit Read(const Argument& argument) : argument_(argument) {}
  void* address(const Frame& frame) const {
    const c10::IValue& value =
        argument_.value ? frame.values[*argument_.value] : argument_.constant;
    return value.isInt() ? in_place_of_address(value.toInt()) : value.toTensor().data_ptr();
  }
  const at::Tensor& get(const Frame& frame) const {
    return argument_.value ? frame.values[*argument_.value].toTensor()
                           : argument_.constant.toTensor();
  }
  Place place(const Plan& plan) const {
    if (is_size()) {
      Place place;
      place.first = in_place_of_address(argument_.constant.toInt());
      return place;
    }
    return argument_.value ? plan.of(*argument_.value) : plan.fixed(argument_.constant.toTensor());
  }
  void let_go(Frame& frame) const {
    if (argument_.is_last) {
      frame.values[*argument_.value] = c10::IValue();
    }
  }

 private:
  bool is_size() const {
    return !argument_.value && argument_.constant.isInt();
  }

  Argument argument_;
};

void keep(Frame& frame, const std::optional<Value>& result, at::Tensor tensor) {
  if (result) {
    frame.values[*result] = std::move(tensor);
  }
}

// The layout of a step, whose symbolic numbers are among the values of a run.
class StepLayout {
 public:
  StepLayout(SymbolicLayout layout, const Step& step)
      : layout_(std::move(layout.layout)), symbolic_(std::move(layout.symbolic)) {
    const size_t before = step.arguments.size() - symbolic_.size();
    for (size_t i = 0; i < symbolic_.size(); ++i) {
      slots_.push_back(*step.arguments[before + i].value);
    }
  }
  bool is_fixed() const {
    return slots_.empty();
  }
  const Layout& fixed() const {
    return layout_;
  }
  // `space` holds a layout that differs from run to run.
  const Layout& in(const Frame& frame, std::optional<Layout>& space) const {
    if (C10_LIKELY(is_fixed())) {
      return layout_;
    }
    space = layout_;
    for (size_t i = 0; i < slots_.size(); ++i) {
      number(*space, symbolic_[i]) = frame.values[slots_[i]].toInt();
    }
    return *space;
  }

 private:
  static int64_t& number(Layout& layout, size_t place) {
    const size_t dims = layout.sizes.size();
    if (place < dims) {
      return layout.sizes[place];
    }
    return place < 2 * dims ? layout.strides[place - dims] : layout.offset;
  }

  Layout layout_;
  std::vector<size_t> symbolic_;
  std::vector<Value> slots_;
};

struct Allocation : TypedCall {
  Allocation(SymbolicLayout layout, at::ScalarType dtype, const Step& step)
      : layout(std::move(layout), step), dtype(dtype), result(step.results[0]) {}
  void run(Frame& frame) const override {
    std::optional<Layout> space;
    const Layout& now = layout.in(frame, space);
    keep(frame, result, at::detail::empty_strided_cpu(now.sizes, now.strides, dtype));
  }
  bool plan(Plan& plan) const override {
    const Layout& fixed = layout.fixed();
    if (result && layout.is_fixed()) {
      plan.allocate(*result, at::detail::empty_strided_cpu(fixed.sizes, fixed.strides, dtype));
    }
    return layout.is_fixed();
  }
  StepLayout layout;
  at::ScalarType dtype;
  std::optional<Value> result;
};

struct Reinterpretation : TypedCall {
  Reinterpretation(SymbolicLayout layout, const Step& step)
      : layout(std::move(layout), step), tensor(step.arguments[0]), result(step.results[0]) {}
  void run(Frame& frame) const override {
    std::optional<Layout> space;
    const Layout& now = layout.in(frame, space);
    at::Tensor seen =
        torch::inductor::_reinterpret_tensor(tensor.get(frame), now.sizes, now.strides, now.offset);
    tensor.let_go(frame);
    keep(frame, result, std::move(seen));
  }
  bool plan(Plan& plan) const override {
    if (result && layout.is_fixed()) {
      plan.see(*result, tensor.place(plan), layout.fixed());
    }
    return layout.is_fixed();
  }
  StepLayout layout;
  Read tensor;
  std::optional<Value> result;
};

struct LayoutCheck : TypedCall {
  LayoutCheck(SymbolicLayout layout, const Step& step)
      : layout(std::move(layout), step), tensor(step.arguments[0]) {}
  void run(Frame& frame) const override {
    std::optional<Layout> space;
    const Layout& now = layout.in(frame, space);
    const at::Tensor& given = tensor.get(frame);
    TORCH_CHECK(
        given.sizes() == at::IntArrayRef(now.sizes) && has_strides(given, now.strides),
        "torchlayers: compiled code expected an operator to return a tensor of sizes ",
        at::IntArrayRef(now.sizes),
        " and strides ",
        at::IntArrayRef(now.strides),
        ", but got sizes ",
        given.sizes(),
        " and strides ",
        given.strides());
    tensor.let_go(frame);
  }
  StepLayout layout;
  Read tensor;
};

struct Product : TypedCall {
  Product(at::Scalar beta, at::Scalar alpha, const Step& step) : beta(beta), alpha(alpha) {
    for (const auto& argument : step.arguments) {
      given.emplace_back(argument);
    }
  }
  void run(Frame& frame) const override {
    std::optional<at::Tensor> added;
    if (given.size() > 3) {
      added = given[3].get(frame);
    }
    multiply(given[0].get(frame), given[1].get(frame), given[2].get(frame), added, beta, alpha);
    for (const auto& each : given) {
      each.let_go(frame);
    }
  }
  bool is_kernel() const override {
    return true;
  }
  at::Scalar beta, alpha;
  std::vector<Read> given;
};

using CallWith = void (*)(void* function, const Addresses& addresses);

template <size_t>
using Address = void*;

template <size_t... i>
constexpr CallWith call_with(std::index_sequence<i...>) {
  return [](void* function, const Addresses& addresses) {
    reinterpret_cast<void (*)(Address<i>...)>(function)(addresses[i]...);
  };
}

// One for each count of addresses.
template <size_t... count>
constexpr std::array<CallWith, sizeof...(count)> calls_with(std::index_sequence<count...>) {
  return {call_with(std::make_index_sequence<count>())...};
}

} // namespace

void call_kernel(void* function, const Addresses& addresses, size_t count) {
  static constexpr auto kCalls = calls_with(std::make_index_sequence<kMostAddresses + 1>());
  kCalls[count](function, addresses);
}

namespace {

struct KernelCall : TypedCall {
  KernelCall(void* function, const Step& step) : function(function) {
    for (const auto& argument : step.arguments) {
      given.emplace_back(argument);
    }
    TORCH_INTERNAL_ASSERT(given.size() <= kMostAddresses);
  }
  void run(Frame& frame) const override {
    Addresses addresses;
    for (size_t i = 0; i < given.size(); ++i) {
      addresses[i] = given[i].address(frame);
    }
    call_kernel(function, addresses, given.size());
    for (const auto& each : given) {
      each.let_go(frame);
    }
  }
  bool plan(Plan& plan) const override {
    std::vector<Place> places;
    for (const auto& each : given) {
      places.push_back(each.place(plan));
    }
    plan.call(function, std::move(places));
    return true;
  }
  bool is_kernel() const override {
    return true;
  }
  void* function;
  std::vector<Read> given;
};

} // namespace

MakeCall allocation(SymbolicLayout layout, at::ScalarType dtype) {
  return [=](const Step& step) { return std::make_shared<const Allocation>(layout, dtype, step); };
}

MakeCall reinterpretation(SymbolicLayout layout) {
  return [=](const Step& step) { return std::make_shared<const Reinterpretation>(layout, step); };
}

MakeCall layout_check(SymbolicLayout layout) {
  return [=](const Step& step) { return std::make_shared<const LayoutCheck>(layout, step); };
}

MakeCall product(at::Scalar beta, at::Scalar alpha) {
  return [=](const Step& step) { return std::make_shared<const Product>(beta, alpha, step); };
}

MakeCall kernel_call(void* function) {
  return [=](const Step& step) { return std::make_shared<const KernelCall>(function, step); };
}

} // namespace torchlayers::compiled
