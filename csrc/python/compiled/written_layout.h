// Values and layouts as Python writes them into a program.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <utility>
#include <vector>

#include "compiled/kernels.h"
#include "compiled/program.h"

namespace torchlayers {

// A reference to a value of a captured graph, among an operator's arguments.
struct RecordedValue {
  compiled::Value index;
};

inline compiled::Argument argument_of_number(pybind11::handle number) {
  return pybind11::isinstance<RecordedValue>(number)
             ? compiled::Argument::of(number.cast<RecordedValue>().index)
             : compiled::Argument::of(c10::IValue(number.cast<int64_t>()));
}

// A layout as Python writes it, in which a number may be a value of the program.
class WrittenLayout {
 public:
  WrittenLayout(const pybind11::sequence& sizes, const pybind11::sequence& strides) {
    read(sizes, layout_.layout.sizes);
    read(strides, layout_.layout.strides);
  }
  void set_offset(pybind11::handle offset) {
    std::vector<int64_t> number;
    read(pybind11::make_tuple(offset), number);
    layout_.layout.offset = number[0];
  }
  const compiled::SymbolicLayout& layout() const {
    return layout_;
  }
  std::vector<compiled::Argument> values(std::vector<compiled::Argument> before = {}) const {
    before.insert(before.end(), values_.begin(), values_.end());
    return before;
  }

 private:
  void read(const pybind11::sequence& numbers, std::vector<int64_t>& into) {
    for (const auto& number : numbers) {
      compiled::Argument argument = argument_of_number(number);
      into.push_back(argument.value ? 0 : argument.constant.toInt());
      if (argument.value) {
        layout_.symbolic.push_back(count_);
        values_.push_back(std::move(argument));
      }
      ++count_;
    }
  }

  compiled::SymbolicLayout layout_;
  std::vector<compiled::Argument> values_;
  size_t count_ = 0;
};

} // namespace torchlayers
