// Elementwise expressions of small plain tensors, in one pass over their elements.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/sum.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "rules/operands.h"

namespace torchlayers {

class Inside;
struct Reads;

// NOTE [One pass]
// An elementwise line (a TERM of forms.h) may be an expression of numbers as much as of tensors:
// if it compiles as both, it is. On tensors it is an operator after another, and each
// takes a microsecond to be dispatched, to compare its arguments and to make its result, however
// small they are. Where nobody can see those operators, and the tensors are so small that this is
// what takes the time, the expression is computed of numbers instead, an element at a time. The
// two agree up to rounding, and in what is nan, infinite or zero to the bit: what numbers.h has
// does as ATen's kernels do, which tests/special_values holds them to.
// Nobody sees them where no layer, mode or autograd is below. One vmap may be: then the values
// that it batches are computed with, as its own rules would.
// Only what a derivative is made of is computed so. The operators that a user calls are torch's.
class OnePass {
 public:
  static constexpr size_t kMostOperands = 8;
  static constexpr int64_t kMostElements = 256;

  OnePass();

  // False where it can't be read so; the operands' tensors have to outlive the pass.
  bool read(size_t place, const at::Tensor& tensor);
  bool read(size_t place, double number);
  // The tangent (or cotangent), the result, and then the arguments: those that the line reads.
  bool read_line(const at::Tensor& t, const Operands& call, const Reads& reads);

  // What every element comes from: `expression(element)`, of an `Element<float>` or `<double>`.
  // Undefined if what was read can't be walked together.
  template <class Expression>
  at::Tensor compute(const Expression& expression);
  // The sum of all that, a sum a sample where a batch is looked through.
  template <class Expression>
  at::Tensor sum(const Expression& expression);

 private:
  struct Operand {
    const at::TensorImpl* value = nullptr; // none: the number
    bool is_batched = false;
    at::IntArrayRef sizes; // without the batch
    at::IntArrayRef strides;
    double number = 0;
    int64_t outer = 0; // elements from one turn of a loop to the next
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
  int64_t level_ = 0;        // of the vmap that is looked through, if there is one
  Inside* inside_ = nullptr; // its
  int64_t batch_size_ = -1;  // of what it batches, if anything
  std::array<Operand, kMostOperands> operands_;
  std::optional<at::ScalarType> dtype_; // of those with dimensions
  std::optional<at::ScalarType> dtype_of_scalars_;
  bool has_flags_ = false;
  at::IntArrayRef sizes_; // the longest, without the batch
  bool has_shape_ = false;
  bool are_alike_ = true; // all of these sizes and contiguous, but for numbers
  int64_t outer_ = 1;
  int64_t inner_ = 1;
};

// The operands at one place, as numbers; read like `Operands`.
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

// The operands, and what has to be converted to be one.
template <class Number>
struct OnePass::Sources {
  std::array<typename Element<Number>::Source, kMostOperands> operands;
  std::array<Number, kMostOperands> numbers;
  std::array<Number, kMostElements> flags; // of the one operand that may be of them

  Element<Number> at(int64_t outer, int64_t inner) const {
    return Element<Number>(operands.data(), outer, inner);
  }
};

template <class Number>
void OnePass::find(Sources<Number>& sources) const {
  for (size_t i = 0; i < kMostOperands; ++i) {
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

// Whether a line of a rule, a function of (t, c, x, y), makes numbers of numbers. One that returns
// a reference is t itself, and leaves nothing to compute.
template <class Line, class Number>
concept MakesNumbers = requires(const Line& line, const Number& t, const Element<Number>& c) {
  requires std::is_arithmetic_v<decltype(line(t, c, c[0], c.result()))>;
};
template <class Line>
constexpr bool is_of_numbers = MakesNumbers<Line, float> && MakesNumbers<Line, double>;

// What the line makes of these tensors, in one pass if possible.
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

// `expression` of an element's operands, of which there are as many as tensors.
template <class Expression, class... Tensors>
auto of_elements(const Expression& expression, const Tensors&...) {
  return [&expression](const auto& element) {
    return [&]<size_t... Places>(std::index_sequence<Places...>) {
      return expression(element.at(Places)...);
    }(std::index_sequence_for<Tensors...>());
  };
}

// The same of tensors alone; undefined where it takes more than one pass.
template <class Expression, class... Tensors>
at::Tensor if_in_one_pass(const Expression& expression, const Tensors&... tensors) {
  OnePass pass;
  size_t place = 0;
  return (pass.read(place++, tensors) && ...) ? pass.compute(of_elements(expression, tensors...))
                                              : at::Tensor();
}

// `expression(a, b)` of in_one_pass(expression, a, b), in any case.
template <class Expression, class... Tensors>
at::Tensor in_one_pass(const Expression& expression, const Tensors&... tensors) {
  at::Tensor result = if_in_one_pass(expression, tensors...);
  return result.defined() ? result : expression(tensors...);
}

// The sum of all that this would be; undefined where it takes more than one pass.
template <class Expression, class... Tensors>
at::Tensor sum_if_in_one_pass(const Expression& expression, const Tensors&... tensors) {
  OnePass pass;
  size_t place = 0;
  return (pass.read(place++, tensors) && ...) ? pass.sum(of_elements(expression, tensors...))
                                              : at::Tensor();
}

// The same in any case.
template <class Expression, class... Tensors>
at::Tensor sum_in_one_pass(const Expression& expression, const Tensors&... tensors) {
  at::Tensor sum = sum_if_in_one_pass(expression, tensors...);
  return sum.defined() ? sum : at::sum(expression(tensors...));
}

} // namespace torchlayers
