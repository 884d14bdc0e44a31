// Recurrent networks, taken apart.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "core/args.h"
#include "core/keys.h"
#include "core/recording.h"
#include "core/stack.h"
#include "core/trace.h"
#include "dispatch/apart.h"
#include "dispatch/fallbacks.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using at::Tensor;

constexpr int64_t kLstm = 2; // of mkldnn_rnn_layer's modes, the one that torch calls it in

// What mkldnn_rnn_layer takes.
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

// Of one reverse pass torch's kernel is the fastest, and that is all that it knows.
bool is_for_torch(const Layer& layer, const Args& args, size_t count) {
  const bool is_one_grad = mirror().size() == 1 && std::string_view(layer.kind()) == "grad";
  return is_one_grad ||
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
  Tensor none = at::empty({0}, output.options()); // for a backward of its own
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
  trace("take apart", op, *layer);
  run_lstm(op, *args);
}

// The lengths of a packed sequence's steps are read from memory. No level has a derivative by them.
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

// Numbers in memory, at no level.
Tensor whole_numbers(const std::vector<int64_t>& numbers) {
  const auto count = static_cast<int64_t>(numbers.size());
  Tensor tensor = at::detail::empty_cpu({count}, at::TensorOptions(at::kLong));
  std::ranges::copy(numbers, tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

// _pad_packed_sequence(data, lengths of the steps, batch first, padding, length in all): each place
// has its row of the data, or one of padding behind them. torch's kernel reads memory that it has
// asked the layers for.
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
      "pad_packed_sequence: total_length is ",
      asked_for,
      ", and the longest sequence has ",
      steps.numel(),
      " steps.");
  const int64_t length = std::max(asked_for, steps.numel());
  const int64_t all = data.size(0);
  std::vector<int64_t> lengths(counts.front());
  std::vector<int64_t> rows(length * counts.front(), all);
  int64_t row = 0;
  for (size_t step = 0; step < counts.size(); ++step) {
    for (int64_t i = 0; i < counts[step]; ++i) {
      rows[static_cast<int64_t>(step) * counts.front() + i] = row++;
      ++lengths[i];
    }
  }
  at::DimVector sizes(data.sizes());
  sizes[0] = 1;
  const Tensor with_padding = at::cat({data, at::full(sizes, padding, data.options())});
  sizes[0] = counts.front();
  sizes.insert(sizes.begin(), length);
  Tensor padded = with_padding.index_select(0, whole_numbers(rows).to(data.device())).view(sizes);
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
  trace("take apart", op, *layer);
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
