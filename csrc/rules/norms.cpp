// Batch, layer and group norm: standardise, then scale and shift.
#include "families.h"
#include "forms.h"

namespace torchlayers {
namespace {

using at::Tensor;

// What standardising over `dims` does: (x - mean) / deviation.
struct Standardised {
  Tensor x;
  Tensor x_tangent;
  Tensor mean_tangent;
  Tensor scale_tangent;

  // By the mean and 1 / deviation.
  Standardised(
      const Tensor& input,
      const Tensor& tangent,
      const Tensor& mean,
      const Tensor& scale,
      at::IntArrayRef dims)
      : x((input - mean) * scale) {
    if (!tangent.defined()) {
      return;
    }
    mean_tangent = tangent.mean(dims, /*keepdim=*/true);
    const Tensor along = (x * tangent).mean(dims, /*keepdim=*/true);
    x_tangent = (tangent - mean_tangent - x * along) * scale;
    scale_tangent = -scale * scale * along;
  }

  // The same, where the statistics have to be made of the input.
  static Standardised of(
      const Tensor& input, const Tensor& tangent, double eps, at::IntArrayRef dims) {
    const Tensor mean = input.mean(dims, /*keepdim=*/true);
    const Tensor centred = input - mean;
    const Tensor scale = ((centred * centred).mean(dims, /*keepdim=*/true) + eps).rsqrt();
    return Standardised(input, tangent, mean, scale, dims);
  }

  // Of x * weight + bias.
  Tensor affine(
      const Tensor& weight, const Tensor& weight_tangent, const Tensor& bias_tangent) const {
    return sum_of(
        {x_tangent.defined() && weight.defined() ? x_tangent * weight : x_tangent,
         weight_tangent.defined() ? x * weight_tangent : Tensor(),
         bias_tangent});
  }
};

// native_layer_norm(input, normalized_shape, weight, bias, eps) -> (output, mean, rstd)
void layer_norm(Call& call) {
  call.run();
  const int64_t count = static_cast<int64_t>(call.sizes(1).size());
  std::vector<int64_t> dims;
  for (int64_t i = 1; i <= count; ++i) {
    dims.push_back(-i);
  }
  const Tensor& x = call[0];
  const Tensor t = tangent_or_none(call, 0);
  const Standardised standard = is_differentiated_below({x, t})
                                    ? Standardised::of(x, t, call.number(4), dims)
                                    : Standardised(x, t, call.result(1), call.result(2), dims);
  call.set_tangent(0, standard.affine(call[2], tangent_or_none(call, 2), tangent_or_none(call, 3)));
}

// A channel's parameter, put where the channels are.
Tensor along_channels(const Tensor& parameter, int64_t rank) {
  if (!parameter.defined() || rank < 2) {
    return parameter;
  }
  c10::SymDimVector sizes(rank, 1);
  sizes[1] = parameter.sym_numel();
  return parameter.reshape_symint(sizes);
}

// native_group_norm(input, weight, bias, N, C, HxW, group, eps) -> (output, mean, rstd),
// the last two of (N, group).
void group_norm(Call& call) {
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
    call.set_tangent(2, standard.scale_tangent.squeeze(-1));
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

// native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
// -> (output, mean, 1/deviation), the last two of the batch where it is training.
void batch_norm(Call& call) {
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
  // (x - mean) * scale, by the statistics that are kept.
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

} // namespace

void add_norms(Table& rules) {
  WRITTEN("native_layer_norm", layer_norm);
  WRITTEN("native_group_norm", group_norm);
  WRITTEN("native_batch_norm", batch_norm);
}

} // namespace torchlayers
