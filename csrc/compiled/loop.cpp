#include "compiled/loop.h"

#include <ATen/EmptyTensor.h>

#include <cstring>

#include "compiled/interruptible.h"
#include "compiled/loop_plan.h"
#include "core/aten_functions.h"
#include "core/device.h"

namespace torchlayers::compiled {
namespace {

using Tensors = std::vector<at::Tensor>;

bool is_in_host(const at::Tensor& tensor) {
  return is_in_host_memory(*tensor.unsafeGetTensorImpl());
}

Place rows_of(const at::Tensor& tensor, const Layout& layout) {
  Place place = Plan::fixed(tensor);
  place.advance = tensor.stride(0) * static_cast<int64_t>(tensor.element_size());
  place.layout = layout;
  return place;
}

// Whether the elements are contiguous, in memory that the steps allocate.
bool is_result(const Place& place) {
  int64_t expected = 1;
  for (size_t i = place.layout.sizes.size(); i-- > 0;) {
    if (place.layout.sizes[i] != 1 && place.layout.strides[i] != expected) {
      return false;
    }
    expected *= place.layout.sizes[i];
  }
  return place.allocation.has_value();
}

// Collects ys while the steps run.
class Rows {
 public:
  Rows(int64_t length, bool is_plain) : length_(length), is_plain_(is_plain) {}

  void put(int64_t step, const at::Tensor& row) {
    if (!is_plain_) {
      rows_.push_back(row);
      return;
    }
    if (step == 0) {
      std::vector<int64_t> sizes = row.sizes().vec();
      sizes.insert(sizes.begin(), length_);
      all_ = at::empty(sizes, row.options());
    }
    if (is_in_host(row) && row.is_contiguous() && !row.is_conj() && !row.is_neg()) {
      if (row.nbytes() != 0) {
        std::memcpy(
            static_cast<char*>(all_.data_ptr()) + step * row.nbytes(),
            row.data_ptr(),
            row.nbytes());
      }
    } else {
      all_.select(0, step).copy_(row);
    }
  }
  at::Tensor all() {
    return is_plain_ ? std::move(all_) : at::stack(rows_);
  }

 private:
  int64_t length_;
  bool is_plain_;
  at::Tensor all_;
  Tensors rows_;
};

} // namespace

void Loop::run(torch::jit::Stack& stack) const {
  for (auto& value : stack) {
    value = value.toTensor().contiguous();
  }
  Tensors results;
  if (!run_planned(stack, results)) {
    run_each(stack, results);
  }
  stack.clear();
  stack.emplace_back(std::move(results));
}

void Loop::run_each(torch::jit::Stack& given, Tensors& results) const {
  const int64_t length = given[carried].toTensor().size(0);
  std::vector<Rows> ys(body->num_outputs() - carried, Rows(length, body->may_pass_by(given)));
  std::vector<Tensors> xs;
  for (size_t i = carried; i < carried + sliced; ++i) {
    xs.push_back(given[i].toTensor().unbind(0));
  }
  torch::jit::Stack carry(given.begin(), given.begin() + carried), stack;
  Interruptible interruptible;
  for (int64_t step = 0; step < length; ++step) {
    stack = std::move(carry);
    for (const auto& x : xs) {
      stack.emplace_back(x[step]);
    }
    stack.insert(stack.end(), given.begin() + carried + sliced, given.end());
    body->run(stack);
    carry.assign(stack.begin(), stack.begin() + carried);
    for (size_t i = 0; i < ys.size(); ++i) {
      ys[i].put(step, stack[carried + i].toTensor());
    }
    interruptible.look();
  }
  for (auto& last : carry) {
    results.push_back(std::move(last).toTensor());
  }
  for (auto& y : ys) {
    results.push_back(y.all());
  }
}

// If the body consists of kernels only, a step allocates and looks up nothing. A y that has memory
// to itself is computed directly in its row.
bool Loop::run_planned(const torch::jit::Stack& given, Tensors& results) const {
  if (!body->may_pass_by(given)) {
    return false;
  }
  Plan plan(body->num_slots());
  Tensors carry;
  for (size_t i = 0; i < given.size(); ++i) {
    const at::Tensor& tensor = given[i].toTensor();
    if (!is_in_host(tensor)) {
      return false;
    }
    if (i < carried) {
      carry.push_back(tensor.clone());
      plan.put(i, Plan::fixed(carry.back()));
    } else if (i < carried + sliced) {
      const auto sizes = tensor.sizes().slice(1), strides = tensor.strides().slice(1);
      plan.put(i, rows_of(tensor, {sizes.vec(), strides.vec()}));
    } else {
      plan.put(i, Plan::fixed(tensor));
    }
  }
  for (const auto& step : body->steps()) {
    if (!step.typed || !step.typed->plan(plan)) {
      return false;
    }
  }
  for (const auto& output : body->outputs()) {
    if (!output.value || !is_result(plan.of(*output.value))) {
      return false;
    }
  }
  const int64_t length = given[carried].toTensor().size(0);
  for (size_t i = 0; i < body->outputs().size(); ++i) {
    const Place from = plan.of(*body->outputs()[i].value);
    if (i < carried) {
      plan.copy(from, Plan::fixed(carry[i]), carry[i].nbytes());
      results.push_back(carry[i]);
      continue;
    }
    std::vector<int64_t> sizes = from.layout.sizes;
    sizes.insert(sizes.begin(), length);
    at::Tensor all = at::detail::empty_cpu(sizes, from.dtype);
    const Place row = rows_of(all, from.layout);
    plan.write(from, row, row.advance);
    results.push_back(std::move(all));
  }
  plan.run(length);
  return true;
}

void WhileLoop::run(torch::jit::Stack& stack) const {
  torch::jit::Stack given = std::move(stack);
  const auto rest = given.begin() + static_cast<int64_t>(carried);
  torch::jit::Stack carry(given.begin(), rest);
  Tensors results;
  if (!goes_on(carry, given)) {
    for (const auto& first : carry) {
      results.push_back(first.toTensor().clone());
    }
  } else {
    Interruptible interruptible;
    do {
      carry.insert(carry.end(), rest, given.end());
      body->run(carry);
      interruptible.look();
    } while (goes_on(carry, given));
    for (auto& last : carry) {
      results.push_back(std::move(last).toTensor());
    }
  }
  stack.clear();
  stack.emplace_back(std::move(results));
}

bool WhileLoop::goes_on(const torch::jit::Stack& carry, const torch::jit::Stack& given) const {
  torch::jit::Stack args = carry;
  args.insert(args.end(), given.begin() + static_cast<int64_t>(carried), given.end());
  condition->run(args);
  const at::Tensor& answer = args.at(0).toTensor();
  if (is_in_host(answer) && answer.scalar_type() == at::kBool && answer.numel() == 1) {
    return *answer.const_data_ptr<bool>();
  }
  return answer.is_nonzero();
}

} // namespace torchlayers::compiled
