#include "graph/gradients/symbolic.h"

#include <c10/core/SymNodeImpl.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/library.h>

#include <algorithm>

#include "core/keys.h"
#include "rules/operands.h"

namespace torchlayers::graph {

using c10::SymNode;
using torch::jit::Node;
using torch::jit::Stack;
using torch::jit::Value;

namespace {

[[noreturn]] void refuse_property(const char* property) {
  TORCH_CHECK(false, "the ", property, " of a graph's tensor is not known");
}

// A tensor of the graph: an input that is added when it is read, or the result of a node.
class SymbolicTensor final : public at::TensorImpl {
 public:
  SymbolicTensor(Formula& formula, std::string name, c10::TypePtr type, Value* value = nullptr)
      : TensorImpl(c10::DispatchKeySet(kSymbolic), caffe2::TypeMeta(), std::nullopt),
        formula(formula),
        name_(std::move(name)),
        type_(std::move(type)),
        value_(value) {
    set_custom_sizes_strides(SizesStridesPolicy::CustomSizes);
    set_custom_device(true);
  }

  Value* value() const {
    if (value_ == nullptr) {
      value_ = formula.input(name_, type_);
    }
    return value_;
  }

  c10::SymInt sym_numel_custom() const override;

  at::IntArrayRef sizes_custom() const override {
    refuse_property("size");
  }
  at::IntArrayRef strides_custom() const override {
    refuse_property("layout in memory");
  }
  int64_t numel_custom() const override {
    refuse_property("size");
  }
  int64_t dim_custom() const override {
    refuse_property("number of dimensions");
  }
  c10::Device device_custom() const override {
    refuse_property("device");
  }
  c10::Layout layout_custom() const override {
    refuse_property("layout in memory");
  }
  c10::SymIntArrayRef sym_sizes_custom() const override {
    refuse_property("size");
  }
  c10::SymIntArrayRef sym_strides_custom() const override {
    refuse_property("layout in memory");
  }

  Formula& formula;

 private:
  std::string name_; // of the input
  c10::TypePtr type_;
  mutable Value* value_;
};

// A number of the graph. Those of a list of unknown length stand for the whole list, and have no
// value of their own.
class SymbolicNumber final : public SymbolicDim {
 public:
  SymbolicNumber(Formula& formula, std::string name, c10::TypePtr type, Value* value = nullptr)
      : formula_(formula), name_(std::move(name)), type_(std::move(type)), value_(value) {}

  bool is_list() const {
    return type_->kind() == c10::TypeKind::ListType;
  }
  bool is_same_list(const SymbolicNumber& other) const {
    return is_list() && other.is_list() && name_ == other.name_;
  }
  Value* list() {
    return formula_.input(name_, type_);
  }
  Value* value() {
    TORCH_CHECK(!is_list(), "a number in a list of a graph is not known");
    return value_ != nullptr ? value_ : formula_.input(name_, type_);
  }

  bool is_int() override {
    return !is_float() && !is_bool();
  }
  bool is_float() override {
    return type_->kind() == c10::TypeKind::FloatType || type_->kind() == c10::TypeKind::NumberType;
  }
  bool is_bool() override {
    return type_->kind() == c10::TypeKind::BoolType;
  }
  SymNode wrap_int(int64_t number) override {
    return computed(formula_.graph().insertConstant(number));
  }
  SymNode neg() override {
    return computed(formula_.add("aten::neg", {value()}));
  }
  SymNode add(const SymNode& other) override {
    return with("aten::add", other);
  }
  SymNode sub(const SymNode& other) override {
    return with("aten::sub", other);
  }
  SymNode mul(const SymNode& other) override {
    return with("aten::mul", other);
  }
  int64_t as_dim() override {
    TORCH_CHECK(is_int(), "a dimension of a graph is not known");
    return formula_.dim_of(value());
  }
  std::string str() override {
    return "a number of a graph";
  }

 private:
  SymNode computed(Value* value) const {
    return c10::make_intrusive<SymbolicNumber>(formula_, "", c10::IntType::get(), value);
  }
  SymNode with(const char* op, const SymNode& other) {
    auto* number = dynamic_cast<SymbolicNumber*>(other.get());
    TORCH_CHECK(number != nullptr && is_int() && number->is_int(), "not a number of a graph");
    return computed(formula_.add(op, {value(), number->value()}));
  }

  Formula& formula_;
  std::string name_;
  c10::TypePtr type_;
  Value* value_;
};

SymbolicTensor& symbolic(const at::Tensor& tensor) {
  TORCH_CHECK(is_symbolic(tensor), "not a tensor of a graph");
  return static_cast<SymbolicTensor&>(*tensor.unsafeGetTensorImpl());
}

c10::intrusive_ptr<SymbolicNumber> symbolic_number(const c10::IValue& value) {
  const SymNode node = value.isSymInt()     ? value.toSymInt().toSymNode()
                       : value.isSymFloat() ? value.toSymFloat().toSymNodeImpl()
                                            : value.toSymBool().toSymNodeImpl();
  auto* number = dynamic_cast<SymbolicNumber*>(node.get());
  TORCH_CHECK(number != nullptr, "not a number of a graph");
  return c10::intrusive_ptr<SymbolicNumber>::reclaim_copy(number);
}

// result_type returns a dtype, of which a graph knows only where it was computed. Larger than those
// that torch has.
constexpr int64_t kFirstSymbolicDtype = 100;

Formula* formula_among(at::ArrayRef<c10::IValue> values) {
  for (const c10::IValue& value : values) {
    if (value.isTensor() && is_symbolic(value.toTensor())) {
      return &symbolic(value.toTensor()).formula;
    }
    if (value.isList() && !value.toListRef().empty()) {
      if (Formula* formula = formula_among(value.toListRef())) {
        return formula;
      }
    }
  }
  return nullptr;
}

} // namespace

c10::SymInt SymbolicTensor::sym_numel_custom() const {
  return c10::SymInt(SymNode(
      c10::make_intrusive<SymbolicNumber>(
          formula, "", c10::IntType::get(), formula.add("aten::numel", {value()}))));
}

Value* Formula::input(const std::string& name, const c10::TypePtr& type) {
  auto [place, is_new] = inputs_.try_emplace(name, nullptr);
  if (is_new) {
    place->second = graph_->addInput()->setType(type);
    names_.push_back(name);
  }
  return place->second;
}

at::Tensor Formula::tensor(const std::string& name, const c10::TypePtr& type) {
  return at::detail::make_tensor<SymbolicTensor>(*this, name, type);
}

c10::IValue Formula::number(const std::string& name, const c10::TypePtr& type) {
  const SymNode node = c10::make_intrusive<SymbolicNumber>(*this, name, type);
  if (node->is_int()) {
    return c10::SymInt(node);
  }
  return node->is_bool() ? c10::IValue(c10::SymBool(node)) : c10::IValue(c10::SymFloat(node));
}

// Far from any dimension, before the first or behind the last.
int64_t Formula::dim_of(Value* dimension) {
  for (const auto& [number, known] : dims_) {
    if (known == dimension) {
      return number;
    }
  }
  constexpr int64_t kFar = int64_t{1} << 40;
  const int64_t distance = kFar + (static_cast<int64_t>(dims_.size()) << 20);
  const int64_t number = variant_ == Variant::First ? distance : -distance;
  dims_[number] = dimension;
  return number;
}

std::vector<c10::SymInt> Formula::integers(const std::string& name) {
  const c10::SymInt any(
      SymNode(c10::make_intrusive<SymbolicNumber>(*this, name, c10::ListType::ofInts())));
  return std::vector<c10::SymInt>(rank(), any);
}

std::vector<c10::SymInt> Formula::sizes_of(const std::string& name) {
  return integers(name + "_size");
}

Value* Formula::constant(const c10::IValue& value) {
  return graph_->insertConstant(value);
}

Value* Formula::list_of(const c10::IValue& list, const c10::TypePtr& type) {
  const auto members = list.toListRef();
  if (!members.empty() && members[0].isSymInt()) {
    const auto first = symbolic_number(members[0]);
    const bool is_whole = std::all_of(members.begin(), members.end(), [&](const auto& member) {
      return member.isSymInt() && symbolic_number(member)->is_same_list(*first);
    });
    if (is_whole && members.size() == rank()) {
      return first->list();
    }
  }
  const c10::TypePtr& element = type->expectRef<c10::ListType>().getElementType();
  const c10::Argument member("", element);
  std::vector<Value*> values;
  for (const c10::IValue& each : members) {
    values.push_back(value_of(each, member));
  }
  return graph_->insertNode(graph_->createList(element, values))->output();
}

Value* Formula::value_of(const c10::IValue& value, const c10::Argument& argument) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return is_symbolic(tensor) ? symbolic(tensor).value()
                               : constant(tensor.defined() ? value : c10::IValue());
  }
  if (value.isSymInt() || value.isSymFloat() || value.isSymBool()) {
    return symbolic_number(value)->value();
  }
  c10::TypePtr type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  if (type->kind() == c10::TypeKind::ScalarTypeType && value.isInt()) {
    const int64_t dtype = value.toInt();
    TORCH_CHECK(
        dtype != static_cast<int64_t>(at::ScalarType::Undefined),
        "the dtype of a graph's tensor is not known");
    if (dtype >= kFirstSymbolicDtype) {
      return dtypes_.at(dtype - kFirstSymbolicDtype);
    }
  }
  if (value.isInt() && dims_.contains(value.toInt())) {
    return dims_.at(value.toInt());
  }
  const bool is_plain_list =
      value.isDoubleList() || value.isBoolList() || (value.isIntList() && dims_.empty());
  if (value.isList() && !is_plain_list) {
    return list_of(
        value,
        argument.type()->kind() == c10::TypeKind::OptionalType
            ? argument.type()->expectRef<c10::OptionalType>().getElementType()
            : argument.type());
  }
  return constant(value);
}

Value* Formula::add(const char* op, at::ArrayRef<Value*> inputs) {
  Node* node = graph_->insertNode(graph_->create(c10::Symbol::fromQualString(op), inputs));
  node->output()->setType(node->schema().returns().at(0).type());
  return node->output();
}

// The fallback of all operators on symbolic tensors.
void add_operator(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  Formula* formula = formula_among(arguments);
  TORCH_CHECK(formula != nullptr && !schema.is_mutable(), "a graph can't have ", schema);
  std::vector<Value*> inputs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    inputs.push_back(formula->value_of(arguments[i], schema.arguments()[i]));
  }
  torch::jit::Graph& graph = formula->graph();
  Node* node = graph.insertNode(
      graph.create(c10::Symbol::fromQualString(schema.name()), inputs, schema.returns().size()));
  const auto* match = node->maybeSchema();
  TORCH_CHECK(
      match != nullptr && match->overload_name() == schema.overload_name(),
      "TorchScript has no ",
      schema);
  torch::jit::drop(*stack, arguments.size());
  for (size_t i = 0; i < node->outputs().size(); ++i) {
    const auto& result = schema.returns()[i];
    Value* value = node->output(i)->setType(match->returns()[i].type());
    if (result.type()->kind() == c10::TypeKind::TensorType) {
      stack->emplace_back(
          at::detail::make_tensor<SymbolicTensor>(*formula, "", value->type(), value));
    } else {
      TORCH_CHECK(
          result.real_type()->kind() == c10::TypeKind::ScalarTypeType,
          "what a graph decides by values is not known: ",
          schema);
      stack->emplace_back(kFirstSymbolicDtype + static_cast<int64_t>(formula->dtypes_.size()));
      formula->dtypes_.push_back(value);
    }
  }
}

Value* value_of(const at::Tensor& tensor) {
  return symbolic(tensor).value();
}

namespace {

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  add_operator(op, stack);
}

// Lives as long as the process, like those of dispatch/register_kernels.cpp.
[[maybe_unused]] const auto* const on_symbolic = [] {
  auto* library = new torch::Library(torch::Library::IMPL, "_", kSymbolic, __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  return library;
}();

} // namespace

} // namespace torchlayers::graph
