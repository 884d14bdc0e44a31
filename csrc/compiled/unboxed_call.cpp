#include "compiled/unboxed_call.h"

#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace torchlayers::compiled {
namespace {

bool is_wrapped_number(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() &&
         value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
}

// Supplies an argument, by its C++ type. `beside`: the dtype of the first argument.
template <class T>
class Source {
 public:
  static bool takes(const Argument& argument) {
    return !argument.value && !argument.is_list();
  }
  explicit Source(const Argument& argument) : constant_(argument.constant.to<T>()) {}
  const T& get(Frame&, at::ScalarType) const {
    return constant_;
  }
  void let_go(Frame&) const {}

 private:
  T constant_;
};

// Converting a number to the dtype of the tensor beside it at each call takes longer than the rest,
// so for `x + 2` with floats it is converted once.
template <>
class Source<const at::Tensor&> {
 public:
  static bool takes(const Argument& argument) {
    return argument.value ? !argument.may_be_number : argument.constant.isTensor();
  }
  explicit Source(const Argument& argument)
      : slot_(argument.value), is_last_(argument.is_last), constant_(argument.constant) {
    if (!slot_ && is_wrapped_number(constant_) && !constant_.toTensor().is_complex()) {
      as_float_ = constant_.toTensor().to(at::kFloat);
      as_double_ = constant_.toTensor().to(at::kDouble);
    }
  }
  const at::Tensor& get(Frame& frame, at::ScalarType beside) const {
    if (slot_) {
      return frame.values[*slot_].toTensor();
    }
    if (as_float_.defined()) {
      if (beside == at::kFloat) {
        return as_float_;
      }
      if (beside == at::kDouble) {
        return as_double_;
      }
    }
    return constant_.toTensor();
  }
  void let_go(Frame& frame) const {
    if (is_last_) {
      frame.values[*slot_] = c10::IValue();
    }
  }

 private:
  std::optional<Value> slot_;
  bool is_last_;
  c10::IValue constant_;
  at::Tensor as_float_, as_double_;
};

// References to the value of a constant.
template <class Held, class Reference>
class Referred {
 public:
  static bool takes(const Argument& argument) {
    return Source<Held>::takes(argument);
  }
  explicit Referred(const Argument& argument) : held_(argument) {}
  Reference get(Frame& frame, at::ScalarType beside) const {
    return held_.get(frame, beside);
  }
  void let_go(Frame&) const {}

 private:
  Source<Held> held_;
};

template <>
class Source<const at::Scalar&> : public Referred<at::Scalar, const at::Scalar&> {
  using Referred::Referred;
};
template <>
class Source<at::IntArrayRef> : public Referred<std::vector<int64_t>, at::IntArrayRef> {
  using Referred::Referred;
};

std::vector<c10::SymInt> sizes_of(const c10::IValue& value) {
  if (!value.isIntList()) {
    return value.to<std::vector<c10::SymInt>>();
  }
  std::vector<c10::SymInt> sizes;
  for (const int64_t size : value.toIntList()) {
    sizes.emplace_back(size);
  }
  return sizes;
}

template <>
class Source<c10::SymIntArrayRef> {
 public:
  static bool takes(const Argument& argument) {
    return !argument.value && !argument.is_list();
  }
  explicit Source(const Argument& argument) : sizes_(sizes_of(argument.constant)) {}
  c10::SymIntArrayRef get(Frame&, at::ScalarType) const {
    return sizes_;
  }
  void let_go(Frame&) const {}

 private:
  std::vector<c10::SymInt> sizes_;
};

template <>
class Source<at::OptionalIntArrayRef> {
 public:
  static bool takes(const Argument& argument) {
    return !argument.value && !argument.is_list();
  }
  explicit Source(const Argument& argument)
      : dims_(argument.constant.to<std::optional<std::vector<int64_t>>>()) {}
  at::OptionalIntArrayRef get(Frame&, at::ScalarType) const {
    return dims_ ? at::OptionalIntArrayRef(*dims_) : at::OptionalIntArrayRef();
  }
  void let_go(Frame&) const {}

 private:
  std::optional<std::vector<int64_t>> dims_;
};

template <class Signature>
class CallOf;

template <class... Parameters>
class CallOf<at::Tensor(Parameters...)> : public TypedCall {
 public:
  static constexpr size_t kCount = sizeof...(Parameters);

  static std::shared_ptr<const TypedCall> make(const Step& step) {
    return make(step, std::make_index_sequence<kCount>());
  }

  template <size_t... i>
  CallOf(const Step& step, std::index_sequence<i...>)
      : op_(step.op->typed<at::Tensor(Parameters...)>()),
        sources_(Source<Parameters>(step.arguments[i])...),
        result_(step.results[0]) {}

  void run(Frame& frame) const override {
    run(frame, std::make_index_sequence<kCount>());
  }

 private:
  template <size_t... i>
  static std::shared_ptr<const TypedCall> make(const Step& step, std::index_sequence<i...> places) {
    if (step.arguments.size() != kCount || !(Source<Parameters>::takes(step.arguments[i]) && ...)) {
      return nullptr;
    }
    return std::make_shared<const CallOf>(step, places);
  }

  template <size_t... i>
  void run(Frame& frame, std::index_sequence<i...>) const {
    const auto dtype = std::get<0>(sources_).get(frame, at::ScalarType::Undefined).scalar_type();
    at::Tensor result = op_.call(std::get<i>(sources_).get(frame, dtype)...);
    (std::get<i>(sources_).let_go(frame), ...);
    if (result_) {
      frame.values[*result_] = std::move(result);
    }
  }

  c10::TypedOperatorHandle<at::Tensor(Parameters...)> op_;
  std::tuple<Source<Parameters>...> sources_;
  std::optional<Value> result_;
};

using Make = std::shared_ptr<const TypedCall> (*)(const Step&);
using T = const at::Tensor&;
using N = const at::Scalar&;
using Dtype = std::optional<at::ScalarType>;

template <class... Parameters>
constexpr Make call_of = &CallOf<at::Tensor(Parameters...)>::make;

// By the types of the arguments in the schema.
const std::unordered_map<std::string, Make>& signatures() {
  static const std::unordered_map<std::string, Make> signatures = {
      {"Tensor", call_of<T>},
      {"Tensor, Tensor", call_of<T, T>},
      {"Tensor, Tensor, Tensor", call_of<T, T, T>},
      {"Tensor, Scalar", call_of<T, N>},
      {"Tensor, Tensor, Scalar", call_of<T, T, N>},
      {"Tensor, Scalar, Scalar", call_of<T, N, N>},
      {"Tensor, Tensor, Tensor, Scalar", call_of<T, T, T, N>},
      {"Tensor, Tensor, Tensor, Scalar, Scalar", call_of<T, T, T, N, N>},
      {"Tensor, int", call_of<T, int64_t>},
      {"Tensor, int, int", call_of<T, int64_t, int64_t>},
      {"Tensor, int, bool", call_of<T, int64_t, bool>},
      {"Tensor, int, SymInt", call_of<T, int64_t, c10::SymInt>},
      {"Tensor, int, SymInt?, SymInt?, SymInt",
       call_of<T, int64_t, std::optional<c10::SymInt>, std::optional<c10::SymInt>, c10::SymInt>},
      {"Tensor, int[]", call_of<T, at::IntArrayRef>},
      {"Tensor, int[], bool", call_of<T, at::IntArrayRef, bool>},
      {"Tensor, SymInt[]", call_of<T, c10::SymIntArrayRef>},
      {"Tensor, SymInt[], bool", call_of<T, c10::SymIntArrayRef, bool>},
      {"Tensor, int[]?, bool, ScalarType?", call_of<T, at::OptionalIntArrayRef, bool, Dtype>},
      {"Tensor, ScalarType?", call_of<T, Dtype>},
      {"Tensor, MemoryFormat?", call_of<T, std::optional<at::MemoryFormat>>},
      {"Tensor, Tensor, int, ScalarType", call_of<T, T, int64_t, at::ScalarType>},
      {"Tensor, int, Tensor", call_of<T, int64_t, T>},
      {"Tensor, int, Tensor, bool", call_of<T, int64_t, T, bool>},
  };
  return signatures;
}

// Whether its only effect is to return a new tensor or a view.
bool returns_a_tensor(const c10::FunctionSchema& schema) {
  return !schema.is_mutable() && schema.returns().size() == 1 &&
         schema.returns()[0].type()->kind() == c10::TypeKind::TensorType;
}

} // namespace

std::shared_ptr<const TypedCall> typed_call(const Step& step) {
  if (!step.op || !returns_a_tensor(step.op->schema())) {
    return nullptr;
  }
  std::string types;
  for (const auto& argument : step.op->schema().arguments()) {
    types += (types.empty() ? "" : ", ") + argument.real_type()->str();
  }
  const auto make = signatures().find(types);
  if (make == signatures().end()) {
    return nullptr;
  }
  try {
    return make->second(step);
  } catch (const c10::Error&) { // its C++ signature differs, or only Python has a kernel
    return nullptr;
  }
}

} // namespace torchlayers::compiled
