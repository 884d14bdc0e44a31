// Bags of rows of an embedding matrix: their sums, means or maxima.
#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

constexpr int64_t kMean = 1;
constexpr int64_t kMax = 2;

// Which bags have no rows. Their maxima have indices too, but are zero.
Tensor is_empty(const Tensor& maxima, const Tensor& bag_size) {
  return (bag_size == 0).unsqueeze(-1).logical_or(maxima < 0);
}

Tensor places_of(const Tensor& maxima) {
  return maxima.clamp_min(0).to(at::kLong);
}

Tensor at_maxima(const Tensor& weight, const Tensor& maxima, const Tensor& bag_size) {
  return zero_where(is_empty(maxima, bag_size), weight.gather(0, places_of(maxima)));
}

// _embedding_bag(weight, indices, offsets, …, mode, sparse, per_sample_weights, …): sums and means
// are linear in the weights; for a maximum, the result has its index.
void embedding_bag(JvpCall& call) {
  call.run();
  Tensor sum;
  for (size_t arg : {0, 6}) {
    if (call.has_tangent(arg) && call.integer(4) != kMax) {
      sum = sum_of({sum, call.with({{arg, call.tangent(arg)}})});
    }
  }
  if (call.has_tangent(0) && call.integer(4) == kMax) {
    sum = at_maxima(call.tangent(0), call.result(3), call.result(2));
  }
  call.set_tangent(0, sum);
}

// Which row each sample is, which bag it is in, and by what it is multiplied there.
class Samples {
 public:
  Samples(const Tensor& indices, const Tensor& offsets, c10::SymInt bags, int64_t padding)
      : rows_(indices.to(at::kLong)), bags_(std::move(bags)), is_left_out_(rows_ == padding) {
    const c10::SymInt count = rows_.sym_size(0);
    const Tensor starts = offsets.narrow_symint(0, 0, bags_).to(at::kLong);
    const Tensor starting =
        rows_.new_zeros_symint({count + 1}).index_add(0, starts, at::ones_like(starts));
    bag_ = starting.cumsum(0).narrow_symint(0, 0, count) - 1;
  }

  // The factors by which a mean or frequent rows are scaled, for each sample.
  Tensor scales(
      const Tensor& like, bool is_mean, bool by_frequency, const c10::SymInt& rows) const {
    const Tensor is_in = is_left_out_.logical_not().to(like.scalar_type());
    Tensor scale = is_in;
    if (is_mean) {
      scale = scale / like.new_zeros_symint({bags_})
                          .index_add(0, bag_, is_in)
                          .index_select(0, bag_)
                          .clamp_min(1);
    }
    if (by_frequency) {
      const Tensor ones = at::ones_like(is_in);
      scale =
          scale / like.new_zeros_symint({rows}).index_add(0, rows_, ones).index_select(0, rows_);
    }
    return scale;
  }

  Tensor rows_of(const Tensor& weight) const {
    return weight.index_select(0, rows_);
  }
  Tensor bags_of(const Tensor& bags) const {
    return bags.index_select(0, bag_);
  }
  Tensor into_rows(const Tensor& samples, const c10::SymInt& count) const {
    return samples.new_zeros_symint({count, samples.sym_size(1)}).index_add(0, rows_, samples);
  }
  Tensor into_bags(const Tensor& samples) const {
    return samples.new_zeros_symint({bags_, samples.sym_size(1)}).index_add(0, bag_, samples);
  }

 private:
  Tensor rows_;
  c10::SymInt bags_;
  Tensor is_left_out_;
  Tensor bag_;
};

// torch's operators for the gradients have no derivatives in plain autograd.
void give_differentiable(VjpCall& call, const Tensor& g) {
  const Tensor& weight = call[0];
  const c10::SymInt rows = weight.sym_size(0);
  if (call.integer(4) == kMax) {
    const Tensor& maxima = call.result(3);
    const Tensor of_rows = zero_where(is_empty(maxima, call.result(2)), g.clone());
    call.give(0, at::zeros_like(weight).scatter_add(0, places_of(maxima), of_rows));
    return;
  }
  const Samples samples(call[1], call[2], g.sym_size(0), call.integer(8));
  const Tensor each = samples.bags_of(g);
  if (call.wants(0)) {
    const Tensor scales = samples.scales(g, call.integer(4) == kMean, call.flag(3), rows);
    const Tensor factors = call[6].defined() ? call[6] * scales : scales;
    call.give(0, samples.into_rows(each * factors.unsqueeze(-1), rows));
  }
  if (call.wants(6)) {
    const Tensor scales = samples.scales(g, /*is_mean=*/false, /*by_frequency=*/false, rows);
    call.give(6, (samples.rows_of(weight) * each).sum(-1) * scales);
  }
}

void embedding_bag_vjp(VjpCall& call) {
  const Tensor& g = call.cotangents()[0];
  if (!call.flag(5) && is_differentiated_below({g, call[0], call[6]})) {
    give_differentiable(call, g); // a sparse gradient has no such form
    return;
  }
  if (call.wants(0)) {
    call.give(
        0,
        at::_embedding_bag_backward_symint(
            g,
            call[1],
            call[2],
            call.result(1),
            call.result(2),
            call.result(3),
            call.sizes_of(0)[0],
            call.flag(3),
            call.integer(4),
            call.flag(5),
            call.optional(6),
            call.integer(8)));
  }
  if (call.wants(6)) {
    call.give(
        6,
        at::_embedding_bag_per_sample_weights_backward(
            g, call[0], call[1], call[2], call.result(1), call.integer(4), call.integer(8)));
  }
}

// _embedding_bag_backward(g, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights,
// scale_grad_by_freq, mode, sparse, per_sample_weights, padding_idx)
void embedding_bag_backward_vjp(VjpCall& call) {
  const Tensor& by_weight = call.cotangents()[0];
  if (call.integer(8) == kMax) {
    call.give(0, at_maxima(by_weight, call[5], call[4]));
    return;
  }
  const Samples samples(call[1], call[2], call.sizes_of(0)[0], call.integer(11));
  const Tensor scales =
      samples.scales(by_weight, call.integer(8) == kMean, call.flag(7), call.size(6)).unsqueeze(-1);
  const Tensor each = samples.rows_of(by_weight) * scales;
  if (call.wants(0)) {
    call.give(0, samples.into_bags(call[10].defined() ? each * call[10].unsqueeze(-1) : each));
  }
  if (call.wants(10)) {
    call.give(10, (each * samples.bags_of(call[0])).sum(-1));
  }
}

// _embedding_bag_per_sample_weights_backward(g, weight, indices, offsets, offset2bag, mode,
// padding_idx)
void sample_weights_backward_vjp(VjpCall& call) {
  const Tensor& by_sample = call.cotangents()[0];
  const c10::SymInt& rows = call.sizes_of(1)[0];
  const Samples samples(call[2], call[3], call.sizes_of(0)[0], call.integer(6));
  const Tensor factors =
      (by_sample * samples.scales(by_sample, /*is_mean=*/false, /*by_frequency=*/false, rows))
          .unsqueeze(-1);
  if (call.wants(0)) {
    call.give(0, samples.into_bags(samples.rows_of(call[1]) * factors));
  }
  if (call.wants(1)) {
    call.give(1, samples.into_rows(samples.bags_of(call[0]) * factors, rows));
  }
}

} // namespace

void add_bags(Table& rules) {
  rules["_embedding_bag"]
      .jvp(embedding_bag)
      .vjp(
          embedding_bag_vjp,
          {.by = {"weight", "per_sample_weights"},
           .saves = {
               "weight",
               "indices",
               "offsets",
               "per_sample_weights",
               "result1",
               "result2",
               "result3"}});
  rules["_embedding_bag_backward"].linear_in(0, 10).vjp(
      embedding_bag_backward_vjp,
      {.by = {"grad", "per_sample_weights"},
       .saves = {
           "grad", "indices", "offsets", "bag_size", "maximum_indices", "per_sample_weights"}});
  rules["_embedding_bag_per_sample_weights_backward"].linear_in(0, 1).vjp(
      sample_weights_backward_vjp,
      {.by = {"grad", "weight"}, .saves = {"grad", "weight", "indices", "offsets"}});
}

} // namespace torchlayers
