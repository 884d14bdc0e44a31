// Batch, layer and group norm: standardise, then scale and shift.
#include "core/device.h"
#include "rules/families.h"
#include "rules/networks/parameters.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

// Standardisation over `dims`, and its tangent: (x - mean) / deviation.
struct Standardised {
  std::vector<int64_t> dims;
  Tensor x;
  Tensor scale;
  Tensor x_tangent;
  Tensor mean_tangent;
  Tensor along; // the mean of x times its tangent

  // From the mean and 1 / deviation.
  Standardised(
      const Tensor& input,
      const Tensor& tangent,
      const Tensor& mean,
      const Tensor& deviation,
      const std::vector<int64_t>& dims)
      : dims(dims), x(centred_and_scaled(input, mean, deviation)), scale(deviation) {
    if (!tangent.defined()) {
      return;
    }
    mean_tangent = mean_of([](const auto& t) { return t; }, tangent);
    along = mean_of([](const auto& x, const auto& t) { return x * t; }, x, tangent);
    x_tangent = in_one_pass(
        [](const auto& t, const auto& mean, const auto& x, const auto& along, const auto& scale) {
          return (t - mean - x * along) * scale;
        },
        tangent,
        mean_tangent,
        x,
        along,
        scale);
  }

  static Tensor centred_and_scaled(const Tensor& x, const Tensor& mean, const Tensor& scale) {
    return in_one_pass(
        [](const auto& x, const auto& mean, const auto& scale) { return (x - mean) * scale; },
        x,
        mean,
        scale);
  }

  // The mean of an expression of these tensors over `dims`, with keepdim unless `dims` is all of
  // them.
  template <class Expression, class... Tensors>
  Tensor mean_of(
      const Expression& expression, const Tensor& first, const Tensors&... others) const {
    const auto count = first.sym_numel().maybe_as_int();
    if (count && static_cast<int64_t>(dims.size()) == first.dim()) {
      const double share = 1.0 / static_cast<double>(*count);
      Tensor mean = sum_if_in_one_pass(
          [&](const auto&... elements) { return share * expression(elements...); },
          first,
          others...);
      if (mean.defined()) {
        return mean;
      }
    }
    return expression(first, others...).mean(dims, /*keepdim=*/true);
  }

  // The same, with the statistics computed from the input.
  static Standardised of(
      const Tensor& input, const Tensor& tangent, double eps, const std::vector<int64_t>& dims) {
    const Tensor mean = input.mean(dims, /*keepdim=*/true);
    const Tensor centred = input - mean;
    const Tensor scale = ((centred * centred).mean(dims, /*keepdim=*/true) + eps).rsqrt();
    return Standardised(input, tangent, mean, scale, dims);
  }

  // The Jacobian applied to a cotangent. It is symmetric, so this is the same as for a tangent.
  Tensor pulled(const Tensor& g) const {
    const Tensor along = (x * g).mean(dims, /*keepdim=*/true);
    return (g - g.mean(dims, /*keepdim=*/true) - x * along) * scale;
  }

  static Tensor product(const Tensor& x, const Tensor& weight) {
    return in_one_pass([](const auto& a, const auto& b) { return a * b; }, x, weight);
  }

  // The tangent of x * weight + bias.
  Tensor affine(
      const Tensor& weight, const Tensor& weight_tangent, const Tensor& bias_tangent) const {
    return sum_of(
        {x_tangent.defined() && weight.defined() ? product(x_tangent, weight) : x_tangent,
         weight_tangent.defined() ? x * weight_tangent : Tensor(),
         bias_tangent});
  }
};

std::vector<int64_t> last_dims(size_t count) {
  std::vector<int64_t> dims;
  for (size_t i = 1; i <= count; ++i) {
    dims.push_back(-static_cast<int64_t>(i));
  }
  return dims;
}

// native_layer_norm(input, normalized_shape, weight, bias, eps) -> (output, mean, rstd)
void layer_norm(JvpCall& call) {
  call.run();
  const std::vector<int64_t> dims = last_dims(call.sizes(1).size());
  const Tensor& x = call[0];
  const Tensor t = tangent_or_none(call, 0);
  const Standardised standard = is_differentiated_below({x, t})
                                    ? Standardised::of(x, t, call.number(4), dims)
                                    : Standardised(x, t, call.result(1), call.result(2), dims);
  call.set_tangent(0, standard.affine(call[2], tangent_or_none(call, 2), tangent_or_none(call, 3)));
}

// native_group_norm(input, weight, bias, N, C, HxW, group, eps) -> (output, mean, rstd),
// the last two of (N, group).
void group_norm(JvpCall& call) {
  call.run();
  const Tensor& x = call[0];
  const c10::SymInt groups = call.arg(6).toSymInt();
  const std::vector<c10::SymInt> grouped{
      call.size(3), groups, call.size(4) / groups * call.size(5)};
  const auto group = [&](const Tensor& tensor) {
    return tensor.defined() ? tensor.reshape_symint(grouped) : tensor;
  };
  Standardised standard(
      group(x),
      group(tangent_or_none(call, 0)),
      call.result(1).unsqueeze(-1),
      call.result(2).unsqueeze(-1),
      {2});
  standard.x = standard.x.reshape_symint(x.sym_sizes());
  if (standard.x_tangent.defined()) {
    standard.x_tangent = standard.x_tangent.reshape_symint(x.sym_sizes());
    call.set_tangent(1, standard.mean_tangent.squeeze(-1));
    call.set_tangent(2, (-standard.scale * standard.scale * standard.along).squeeze(-1));
  }
  call.set_tangent(
      0,
      standard.affine(
          along_channels(call[1], x.dim()),
          along_channels(tangent_or_none(call, 1), x.dim()),
          along_channels(tangent_or_none(call, 2), x.dim())));
}

std::vector<int64_t> all_but_channels(int64_t rank) {
  std::vector<int64_t> dims{0};
  for (int64_t dim = 2; dim < rank; ++dim) {
    dims.push_back(dim);
  }
  return dims;
}

// native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps) ->
// (output, mean, 1/deviation), the last two those of the batch if it is training.
void batch_norm(JvpCall& call) {
  call.run();
  const Tensor& x = call[0];
  const int64_t rank = x.dim();
  const Tensor t = tangent_or_none(call, 0);
  const Tensor weight = along_channels(call[1], rank);
  const Tensor weight_tangent = along_channels(tangent_or_none(call, 1), rank);
  const Tensor bias_tangent = along_channels(tangent_or_none(call, 2), rank);
  const bool is_training = call.flag(5);
  if (is_training) {
    const std::vector<int64_t> dims = all_but_channels(rank);
    const Standardised standard = is_differentiated_below({x, t})
                                      ? Standardised::of(x, t, call.number(7), dims)
                                      : Standardised(
                                            x,
                                            t,
                                            along_channels(call.result(1), rank),
                                            along_channels(call.result(2), rank),
                                            dims);
    call.set_tangent(0, standard.affine(weight, weight_tangent, bias_tangent));
    return;
  }
  // (x - mean) * scale, with the running statistics.
  const Tensor mean_tangent = along_channels(tangent_or_none(call, 3), rank);
  const Tensor variance_tangent = along_channels(tangent_or_none(call, 4), rank);
  const Tensor scale = along_channels((call[4] + call.number(7)).rsqrt(), rank);
  Tensor scaled = sum_of({t, mean_tangent.defined() ? -mean_tangent : Tensor()});
  if (scaled.defined()) {
    scaled = scaled * scale;
  }
  Tensor standard;
  if (weight_tangent.defined() || variance_tangent.defined()) {
    standard = (x - along_channels(call[3], rank)) * scale;
  }
  if (variance_tangent.defined()) {
    scaled = sum_of({scaled, -0.5 * standard * scale * scale * variance_tangent});
  }
  if (scaled.defined() && weight.defined()) {
    scaled = scaled * weight;
  }
  call.set_tangent(
      0,
      sum_of(
          {scaled, weight_tangent.defined() ? standard * weight_tangent : Tensor(), bias_tangent}));
}

// The gradients use ordinary operators where they are differentiated below: torch's backward
// operators then treat the statistics as constants, or have no derivative.

void layer_norm_vjp(VjpCall& call) {
  const Tensor& g = call.cotangents()[0];
  const Tensor& x = call[0];
  const Tensor& weight = call[2];
  if (!is_differentiated_below({g, x, weight})) {
    give_each(
        call,
        {0, 2, 3},
        at::native_layer_norm_backward_symint(
            g,
            x,
            call.sizes(1),
            call.result(1),
            call.result(2),
            call.optional(2),
            call.optional(3),
            {call.wants(0), call.wants(2), call.wants(3)}));
    return;
  }
  const Standardised standard =
      Standardised::of(x, Tensor(), call.number(4), last_dims(call.sizes(1).size()));
  if (call.wants(0)) {
    call.give(0, standard.pulled(weight.defined() ? g * weight : g));
  }
  if (call.wants(2)) {
    call.give(2, recorded_with(g * standard.x, {weight}));
  }
  call.give(3, recorded_with(g, {x, weight}));
}

// The gradients of a weight and a bias for each channel.
void give_by_channel(VjpCall& call, const Tensor& g, const Tensor& standard) {
  const std::vector<int64_t> others = all_but_channels(standard.dim());
  if (call.wants(1)) {
    call.give(1, (g * standard).sum(others));
  }
  if (call.wants(2)) {
    call.give(2, g.sum(others));
  }
}

Tensor weighted_by_channel(const Tensor& g, const Tensor& weight) {
  return weight.defined() ? g * along_channels(weight, g.dim()) : g;
}

void group_norm_vjp(VjpCall& call) {
  const Tensor& g = call.cotangents()[0];
  const Tensor& x = call[0];
  const Tensor& g_mean = call.cotangents()[1];
  const Tensor& g_scale = call.cotangents()[2];
  const bool is_plain = g.defined() && !g_mean.defined() && !g_scale.defined();
  if (is_plain && !is_differentiated_below({g, x, call[1]})) {
    const auto layout =
        norms_keep_memory_format(x) ? x.suggest_memory_format() : at::MemoryFormat::Contiguous;
    give_each(
        call,
        {0, 1, 2},
        at::native_group_norm_backward_symint(
            g.contiguous(layout),
            x.contiguous(layout),
            call.result(1).contiguous(),
            call.result(2).contiguous(),
            call.optional(1),
            call.size(3),
            call.size(4),
            call.size(5),
            call.integer(6),
            {call.wants(0), call.wants(1), call.wants(2)}));
    return;
  }
  const std::vector<c10::SymInt> grouped{
      call.size(3), call.integer(6), call.size(4) / call.integer(6) * call.size(5)};
  const Standardised standard =
      Standardised::of(x.reshape_symint(grouped), Tensor(), call.number(7), {2});
  if (call.wants(0)) {
    const c10::SymInt& count = grouped[2];
    Tensor sum;
    if (g.defined()) {
      sum = standard.pulled(weighted_by_channel(g, call[1]).reshape_symint(grouped));
    }
    if (g_mean.defined()) {
      sum = sum_of({sum, (g_mean.unsqueeze(-1) / count).expand_symint(grouped)});
    }
    if (g_scale.defined()) {
      const Tensor along = standard.scale * standard.scale * standard.x;
      sum = sum_of({sum, -g_scale.unsqueeze(-1) * along / count});
    }
    call.give(0, sum.reshape_symint(x.sym_sizes()).contiguous(x.suggest_memory_format()));
  }
  if (g.defined()) {
    give_by_channel(call, g, standard.x.reshape_symint(x.sym_sizes()));
  }
}

void batch_norm_vjp(VjpCall& call) {
  const Tensor& g = call.cotangents()[0];
  const Tensor& x = call[0];
  const bool is_training = call.flag(5);
  // torch's kernel divides by the number of samples, in integers.
  if (!is_differentiated_below({g, x, call[1]}) && x.sym_numel() != 0) {
    give_each(
        call,
        {0, 1, 2},
        at::native_batch_norm_backward(
            g,
            x,
            call.optional(1),
            call.optional(3),
            call.optional(4),
            call.result(1),
            call.result(2),
            is_training,
            call.number(7),
            {call.wants(0), call.wants(1), call.wants(2)}));
    return;
  }
  const int64_t rank = x.dim();
  if (is_training) {
    const Standardised standard =
        Standardised::of(x, Tensor(), call.number(7), all_but_channels(rank));
    if (call.wants(0)) {
      call.give(0, standard.pulled(weighted_by_channel(g, call[1])));
    }
    give_by_channel(call, g, standard.x);
    return;
  }
  const Tensor scale = along_channels((call[4] + call.number(7)).rsqrt(), rank);
  if (call.wants(0)) {
    call.give(0, weighted_by_channel(g, call[1]) * scale);
  }
  give_by_channel(call, g, (x - along_channels(call[3], rank)) * scale);
}

} // namespace

void add_norms(Table& rules) {
  rules["native_layer_norm"]
      .jvp(layer_norm)
      .vjp(
          layer_norm_vjp,
          {.by = {"input", "weight", "bias"},
           .saves = {"input", "weight", "bias", "result1", "result2"}});
  rules["native_group_norm"]
      .jvp(group_norm)
      .vjp(
          group_norm_vjp,
          {.by = {"input", "weight", "bias"},
           .of = {"result", "result1", "result2"},
           .saves = {"input", "weight", "result1", "result2"}});
  rules["native_batch_norm"]
      .jvp(batch_norm)
      .vjp(
          batch_norm_vjp,
          {.by = {"input", "weight", "bias"},
           .saves = {"input", "weight", "running_mean", "running_var", "result1", "result2"}});
}

} // namespace torchlayers
