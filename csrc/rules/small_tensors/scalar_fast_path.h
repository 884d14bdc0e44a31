// Computes elementwise expressions of small plain tensors in one pass over their elements.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/aten_functions.h"
#include "rules/operands.h"

namespace torchlayers {

class LocalStorages;
struct Reads;

// NOTE [One pass]
// An elementwise line (a TERM of rule_macros.h) may be a valid expression of numbers as well as of
// tensors; if it compiles for both, both versions exist. On tensors it is a sequence of operators,
// each of which takes a microsecond to be dispatched, to compare its arguments and to allocate its
// result, however small they are. Where those operators are unobservable, and the tensors are so
// small that this overhead dominates, the expression is computed on numbers instead, one element at
// a time. The two agree up to rounding, and exactly in what is nan, infinite or zero: scalar_math.h
// follows ATen's kernels, which tests/rules/special_values verifies. The operators are unobservable
// where no layer, mode or autograd is below. A single vmap is allowed: then the computation uses
// the values that it batches, as its batching rules would. Derivatives are computed this way, and
// of the operators that a user calls those whose results are exact (NOTE [Small kernels]).
class OnePass {
 public:
  static constexpr size_t kMostOperands = 8;
  static constexpr int64_t kMostElements = 256;

  OnePass();
  // On values that no layer tracks, although there is one on the stack.
  struct PlainValues {};
  explicit OnePass(PlainValues);

  // Returns false if the operand can't be read; the operands' tensors must outlive the pass.
  bool read(size_t place, const at::Tensor& tensor);
  bool read(size_t place, double number);
  // Reads the operands that the line reads: the tangent (or cotangent), the result and the
  // arguments.
  bool read_line(const at::Tensor& t, const Operands& call, const Reads& reads);

  // Whether the operands become the result's dtype without being rounded twice.
  bool converts_exactly() const {
    return !has_flags_ && !has_large_integer_;
  }

  // Computes `expression(element)` for each element, an `Element<float>` or `Element<double>`.
  // Undefined if the operands can't be traversed together.
  template <class Expression>
  at::Tensor compute(const Expression& expression);
  // The sum over all elements; where a vmap is looked through, one sum per sample.
  template <class Expression>
  at::Tensor sum(const Expression& expression);

 private:
  struct Operand {
    const at::TensorImpl* value = nullptr; // null: the number
    bool is_batched = false;
    at::IntArrayRef sizes; // without the batch dimension
    at::IntArrayRef strides;
    double number = 0;
    int64_t outer = 0; // elements between successive iterations of the loop
    int64_t inner = 0;
  };

  bool count_towards_dtype(const at::TensorImpl& value, const Operand& operand);
  bool line_up();
  bool line_up_unlike();
  bool set_steps(Operand& operand) const;
  at::Tensor make_result(at::IntArrayRef sizes) const;
  at::Tensor as_batched(at::Tensor result) const;
  template <class Number>
  struct Sources;
  template <class Number>
  void find(Sources<Number>& sources) const;
  template <class Number, class Expression>
  void fill(Number* result, const Expression& expression) const;
  template <class Number, class Expression>
  void add_up(Number* result, const Expression& expression) const;

  bool is_open_;
  int64_t level_ = 0;                       // of the vmap that is looked through, if any
  LocalStorages* local_storages_ = nullptr; // that vmap's
  int64_t batch_size_ = -1;                 // of the operands that it batches, if any
  std::array<Operand, kMostOperands> operands_;
  size_t count_ = 0;                    // of those up to the last that was read
  std::optional<at::ScalarType> dtype_; // of the operands with dimensions
  std::optional<at::ScalarType> dtype_of_scalars_;
  bool has_flags_ = false;
  bool has_large_integer_ = false; // which a double rounds
  at::IntArrayRef sizes_;          // the longest, without the batch dimension
  bool has_shape_ = false;
  bool are_alike_ = true; // all operands but numbers have these sizes and are contiguous
  int64_t outer_ = 1;
  int64_t inner_ = 1;
};

// The operands of one element, as numbers; indexed like `Operands`.
template <class Number>
class Element {
 public:
  struct Source {
    const Number* data;
    int64_t outer;
    int64_t inner;
  };

  Element(const Source* sources, int64_t outer, int64_t inner)
      : sources_(sources), outer_(outer), inner_(inner) {}

  Number at(size_t place) const {
    const Source& source = sources_[place];
    return source.data[outer_ * source.outer + inner_ * source.inner];
  }
  Number tangent() const {
    return at(0);
  }
  Number result() const {
    return at(1);
  }
  Number operator[](size_t arg) const {
    return at(2 + arg);
  }
  Number scalar(size_t arg) const {
    return at(2 + arg);
  }

 private:
  const Source* sources_;
  int64_t outer_;
  int64_t inner_;
};

// The operands, with storage for those that have to be converted.
template <class Number>
struct OnePass::Sources {
  std::array<typename Element<Number>::Source, kMostOperands> operands;
  std::array<Number, kMostOperands> numbers;
  std::array<Number, kMostElements> flags; // of the boolean operand, of which there may be one

  Element<Number> at(int64_t outer, int64_t inner) const {
    return Element<Number>(operands.data(), outer, inner);
  }
};

template <class Number>
void OnePass::find(Sources<Number>& sources) const {
  for (size_t i = 0; i < count_; ++i) {
    const Operand& operand = operands_[i];
    auto& source = sources.operands[i];
    source = {&sources.numbers[i], operand.outer, operand.inner};
    if (operand.value == nullptr) {
      sources.numbers[i] = static_cast<Number>(operand.number);
    } else if (operand.value->dtype() == caffe2::TypeMeta::Make<bool>()) {
      std::copy_n(
          static_cast<const bool*>(operand.value->data()),
          operand.value->numel(),
          sources.flags.begin());
      source.data = sources.flags.data();
    } else {
      source.data = static_cast<const Number*>(operand.value->data());
    }
  }
}

template <class Number, class Expression>
void OnePass::fill(Number* result, const Expression& expression) const {
  Sources<Number> sources;
  find(sources);
  for (int64_t outer = 0; outer < outer_; ++outer) {
    for (int64_t inner = 0; inner < inner_; ++inner) {
      *result++ = static_cast<Number>(expression(sources.at(outer, inner)));
    }
  }
}

template <class Number, class Expression>
void OnePass::add_up(Number* result, const Expression& expression) const {
  Sources<Number> sources;
  find(sources);
  const bool is_sum_a_turn = batch_size_ >= 0;
  double sum = 0;
  for (int64_t outer = 0; outer < outer_; ++outer) {
    sum = is_sum_a_turn ? 0 : sum;
    for (int64_t inner = 0; inner < inner_; ++inner) {
      sum += static_cast<double>(expression(sources.at(outer, inner)));
    }
    *result = static_cast<Number>(sum);
    result += is_sum_a_turn ? 1 : 0;
  }
}

template <class Expression>
at::Tensor OnePass::compute(const Expression& expression) {
  if (!line_up()) {
    return {};
  }
  at::Tensor result = make_result(sizes_);
  if (*dtype_ == at::kFloat) {
    fill(static_cast<float*>(result.unsafeGetTensorImpl()->mutable_data()), expression);
  } else {
    fill(static_cast<double*>(result.unsafeGetTensorImpl()->mutable_data()), expression);
  }
  return as_batched(std::move(result));
}

template <class Expression>
at::Tensor OnePass::sum(const Expression& expression) {
  if (!line_up()) {
    return {};
  }
  at::Tensor result = make_result({});
  if (*dtype_ == at::kFloat) {
    add_up(static_cast<float*>(result.unsafeGetTensorImpl()->mutable_data()), expression);
  } else {
    add_up(static_cast<double*>(result.unsafeGetTensorImpl()->mutable_data()), expression);
  }
  return as_batched(std::move(result));
}

// Whether a rule's line, a function of (t, c, x, y), maps numbers to numbers. A line that returns a
// reference is t itself, and leaves nothing to compute.
template <class Line, class Number>
concept MakesNumbers = requires(const Line& line, const Number& t, const Element<Number>& c) {
  requires std::is_arithmetic_v<decltype(line(t, c, c[0], c.result()))>;
};
template <class Line>
constexpr bool is_of_numbers = MakesNumbers<Line, float> && MakesNumbers<Line, double>;

// Evaluates the line on these tensors, in one pass if possible.
template <class Line>
at::Tensor compute_line(const at::Tensor& t, const Operands& c, const Reads& reads) {
  const Line line;
  if constexpr (is_of_numbers<Line>) {
    OnePass pass;
    if (pass.read_line(t, c, reads)) {
      at::Tensor result = pass.compute([&](const auto& element) {
        return line(element.tangent(), element, element[0], element.result());
      });
      if (result.defined()) {
        return result;
      }
    }
  }
  return line(t, c, c[0], c.result());
}

// Applies `expression` to the operands of an element, one for each tensor.
template <class Expression, class... Tensors>
auto of_elements(const Expression& expression, const Tensors&...) {
  return [&expression](const auto& element) {
    return [&]<size_t... Places>(std::index_sequence<Places...>) {
      return expression(element.at(Places)...);
    }(std::index_sequence_for<Tensors...>());
  };
}

// The elementwise expression of these tensors; undefined if one pass can't compute it.
template <class Expression, class... Tensors>
at::Tensor if_in_one_pass(const Expression& expression, const Tensors&... tensors) {
  OnePass pass;
  size_t place = 0;
  return (pass.read(place++, tensors) && ...) ? pass.compute(of_elements(expression, tensors...))
                                              : at::Tensor();
}

// The same by ordinary operators where one pass can't compute it.
template <class Expression, class... Tensors>
at::Tensor in_one_pass(const Expression& expression, const Tensors&... tensors) {
  at::Tensor result = if_in_one_pass(expression, tensors...);
  return result.defined() ? result : expression(tensors...);
}

// The sum of the elementwise expression; undefined if one pass can't compute it.
template <class Expression, class... Tensors>
at::Tensor sum_if_in_one_pass(const Expression& expression, const Tensors&... tensors) {
  OnePass pass;
  size_t place = 0;
  return (pass.read(place++, tensors) && ...) ? pass.sum(of_elements(expression, tensors...))
                                              : at::Tensor();
}

// The same by ordinary operators where one pass can't compute it.
template <class Expression, class... Tensors>
at::Tensor sum_in_one_pass(const Expression& expression, const Tensors&... tensors) {
  at::Tensor sum = sum_if_in_one_pass(expression, tensors...);
  return sum.defined() ? sum : at::sum(expression(tensors...));
}

} // namespace torchlayers
