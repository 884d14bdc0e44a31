// Decompositions of recurrent networks.
#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "core/args.h"
#include "core/aten_functions.h"
#include "core/keys.h"
#include "core/skip_autograd.h"
#include "core/stack.h"
#include "core/trace/trace.h"
#include "dispatch/decompose.h"
#include "dispatch/fallbacks.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using at::Tensor;

constexpr int64_t kLstm = 2; // the only one of mkldnn_rnn_layer's modes that torch uses

// The arguments of mkldnn_rnn_layer.
enum Argument : uint8_t {
  kInput,
  kInputWeight,
  kHiddenWeight,
  kInputBias,
  kHiddenBias,
  kHidden,
  kCell,
  kIsReversed,
  kMode = 9,
  kHasBiases = 12
};

// For one reverse pass torch's kernel is the fastest, and it supports nothing else.
bool is_one_grad(const Layer& layer) {
  return mirror().size() == 1 && std::string_view(layer.kind()) == "grad";
}

bool is_for_torch(const Layer& layer, const Args& args, size_t count) {
  return is_one_grad(layer) ||
         !any_tensor(args, count, [](const Tensor& tensor) { return !is_plain(tensor); });
}

// (T, N, features) to (T, N, hidden), with the last hidden state and cell.
void run_lstm(const Operator& op, Args& args) {
  const auto tensor = [&](Argument i) { return peek(args, i, op.num_args).toTensor(); };
  const bool is_reversed = peek(args, kIsReversed, op.num_args).toBool();
  const bool has_biases = peek(args, kHasBiases, op.num_args).toBool();
  const std::optional<Tensor> bias =
      has_biases ? std::optional(tensor(kInputBias) + tensor(kHiddenBias)) : std::nullopt;
  std::vector<Tensor> steps = at::linear(tensor(kInput), tensor(kInputWeight), bias).unbind(0);
  if (is_reversed) {
    std::reverse(steps.begin(), steps.end());
  }
  const Tensor weight = tensor(kHiddenWeight);
  Tensor hidden = tensor(kHidden);
  Tensor cell = tensor(kCell);
  for (Tensor& step : steps) {
    const auto gates = (step + at::linear(hidden, weight)).chunk(4, -1);
    cell = gates[1].sigmoid() * cell + gates[0].sigmoid() * gates[2].tanh();
    hidden = gates[3].sigmoid() * cell.tanh();
    step = hidden;
  }
  if (is_reversed) {
    std::reverse(steps.begin(), steps.end());
  }
  Tensor output = at::stack(steps);
  Tensor none = at::empty({0}, output.options()); // for the kernel's own backward
  drop(args, op.num_args);
  args.insert(args.end(), {std::move(output), std::move(hidden), std::move(cell), std::move(none)});
}

void front_of_lstm_layer(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args) {
  const Operator& op = Operator::of(handle);
  const Layer* layer = layer_at_work();
  if (layer == nullptr || peek(*args, kMode, op.num_args).toInt() != kLstm ||
      is_for_torch(*layer, *args, op.num_args)) {
    front(handle, keys, args);
    return;
  }
  trace("decompose", op, *layer);
  run_lstm(op, *args);
}

// On a GPU, torch calls this operator to ask whether cuDNN should run a network; that supports only
// one reverse pass. Without it the network consists of the cells below.
void front_of_library(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args) {
  const Layer* layer = layer_at_work();
  if (layer == nullptr || is_one_grad(*layer)) {
    front(handle, keys, args);
    return;
  }
  drop(*args, Operator::of(handle).num_args);
  args->emplace_back(false);
}

// (input's part of the gates, hidden state's part, cell or hidden state, biases of both)
std::vector<Tensor> parts_of_gates(const Args& args, size_t count, size_t part, int64_t parts) {
  const c10::IValue& bias = peek(args, 3 + part, count);
  const Tensor gates = peek(args, part, count).toTensor();
  return (bias.isNone() ? gates : gates + bias.toTensor()).chunk(parts, 1);
}

// To the hidden state, the cell, and the tensor that the kernel saves for its own backward.
void run_lstm_cell(Args& args, size_t count) {
  const auto of_input = parts_of_gates(args, count, 0, 4);
  const auto of_hidden = parts_of_gates(args, count, 1, 4);
  const auto gate = [&](size_t i) { return of_input[i] + of_hidden[i]; };
  const Tensor cell =
      gate(1).sigmoid() * peek(args, 2, count).toTensor() + gate(0).sigmoid() * gate(2).tanh();
  const Tensor hidden = gate(3).sigmoid() * cell.tanh();
  drop(args, count);
  args.insert(args.end(), {hidden, cell, at::empty({0}, cell.options())});
}

// To the hidden state, likewise.
void run_gru_cell(Args& args, size_t count) {
  const auto of_input = parts_of_gates(args, count, 0, 3);
  const auto of_hidden = parts_of_gates(args, count, 1, 3);
  const Tensor reset = (of_input[0] + of_hidden[0]).sigmoid();
  const Tensor share = (of_input[1] + of_hidden[1]).sigmoid();
  const Tensor found = (of_input[2] + reset * of_hidden[2]).tanh();
  const Tensor hidden = found + share * (peek(args, 2, count).toTensor() - found);
  drop(args, count);
  args.insert(args.end(), {hidden, at::empty({0}, hidden.options())});
}

template <void (*run)(Args&, size_t)>
void front_of_cell(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args) {
  const Operator& op = Operator::of(handle);
  const Layer* layer = layer_at_work();
  if (layer == nullptr || autocast_is_on() || is_for_torch(*layer, *args, op.num_args)) {
    front(handle, keys, args);
    return;
  }
  trace("decompose", op, *layer);
  run(*args, op.num_args);
}

// The batch sizes of a packed sequence are read from memory. They have no derivatives.
void show_lengths(const Operator& op, Args& args) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < op.num_args; ++i) {
    if (arguments[i].name() == "batch_sizes") {
      c10::IValue& lengths = peek(args, i, op.num_args);
      while (const auto* wrapper = wrapper_of(lengths.toTensor())) {
        lengths = Tensor(wrapper->value());
      }
    }
  }
}

// A tensor of numbers in CPU memory, at no level.
Tensor whole_numbers(const std::vector<int64_t>& numbers) {
  const auto count = static_cast<int64_t>(numbers.size());
  Tensor tensor = at::detail::empty_cpu({count}, at::TensorOptions(at::kLong));
  std::ranges::copy(numbers, tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

// So many steps of so many rows each, padded to the number of rows of the first step. It sends no
// row indices to the device, for which the CPU would have to wait.
Tensor block_of_steps(
    const Tensor& data,
    int64_t first,
    int64_t steps,
    int64_t rows,
    int64_t rows_at_first,
    const at::Scalar& padding) {
  at::DimVector sizes(data.sizes());
  sizes[0] = rows;
  sizes.insert(sizes.begin(), steps);
  const Tensor block = data.narrow(0, first, steps * rows).view(sizes);
  if (rows == rows_at_first) {
    return block;
  }
  std::vector<int64_t> pad(2 * (sizes.size() - 1)); // from the last dimension on
  pad.back() = rows_at_first - rows;
  return at::constant_pad_nd(block, pad, padding);
}

// _pad_packed_sequence(data, batch sizes, batch first, padding, total length). torch's kernel reads
// the memory of tensors that come from the layers.
void run_pad(const Operator& op, Args& args) {
  const Tensor data = peek(args, 0, op.num_args).toTensor();
  const Tensor steps = peek(args, 1, op.num_args).toTensor();
  const bool is_batch_first = peek(args, 2, op.num_args).toBool();
  const at::Scalar padding = peek(args, 3, op.num_args).toScalar();
  const int64_t asked_for = peek(args, 4, op.num_args).toInt();
  const at::ArrayRef<int64_t> counts(
      steps.const_data_ptr<int64_t>(), static_cast<size_t>(steps.numel()));
  TORCH_CHECK_VALUE(
      asked_for <= 0 || asked_for >= steps.numel(),
      "torchlayers: pad_packed_sequence: total_length is ",
      asked_for,
      ", but the longest sequence has ",
      steps.numel(),
      " steps.");
  std::vector<int64_t> lengths(counts.front());
  std::vector<Tensor> blocks; // of consecutive steps with as many rows
  int64_t row = 0;
  for (auto step = counts.begin(); step != counts.end();) {
    const auto next = std::find_if(step, counts.end(), [&](int64_t n) { return n != *step; });
    blocks.push_back(block_of_steps(data, row, next - step, *step, counts.front(), padding));
    row += (next - step) * *step;
    std::for_each(lengths.begin(), lengths.begin() + *step, [&](int64_t& n) { n += next - step; });
    step = next;
  }
  if (asked_for > steps.numel()) {
    at::DimVector sizes(data.sizes());
    sizes[0] = counts.front();
    sizes.insert(sizes.begin(), asked_for - steps.numel());
    blocks.push_back(at::full(sizes, padding, data.options()));
  }
  Tensor padded = at::cat(blocks);
  padded = is_batch_first ? padded.transpose(0, 1) : padded;
  drop(args, op.num_args);
  args.insert(args.end(), {std::move(padded), whole_numbers(lengths)});
}

void front_of_network(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args) {
  const Layer* layer = layer_at_work();
  if (layer == nullptr || autocast_is_on()) {
    front(handle, keys, args);
    return;
  }
  const Operator& op = Operator::of(handle);
  trace("decompose", op, *layer);
  show_lengths(op, *args);
  if (op.schema().name() == "aten::_pad_packed_sequence") {
    run_pad(op, *args);
    return;
  }
  handle.redispatchBoxed(c10::DispatchKeySet(), args);
}

} // namespace

void register_recurrent(torch::Library& on_front) {
  on_front.impl(
      "mkldnn_rnn_layer", torch::CppFunction::makeFromBoxedFunction<&front_of_lstm_layer>());
  on_front.impl(
      "cudnn_is_acceptable", torch::CppFunction::makeFromBoxedFunction<&front_of_library>());
  on_front.impl(
      "_thnn_fused_lstm_cell",
      torch::CppFunction::makeFromBoxedFunction<&front_of_cell<run_lstm_cell>>());
  on_front.impl(
      "_thnn_fused_gru_cell",
      torch::CppFunction::makeFromBoxedFunction<&front_of_cell<run_gru_cell>>());
  for (const char* name :
       {"lstm.input",
        "lstm.data",
        "gru.input",
        "gru.data",
        "rnn_tanh.input",
        "rnn_tanh.data",
        "rnn_relu.input",
        "rnn_relu.data",
        "lstm_cell",
        "gru_cell",
        "rnn_tanh_cell",
        "rnn_relu_cell",
        "_pad_packed_sequence",
        "_pack_padded_sequence_backward"}) {
    on_front.impl(name, torch::CppFunction::makeFromBoxedFunction<&front_of_network>());
  }
}

} // namespace torchlayers
