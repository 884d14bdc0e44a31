// The matmul family.
#include <ATen/ATen.h>

#include "families.h"

namespace torchlayers {
namespace {

using at::Tensor;

// The product of two lists of vectors, one by one.
Tensor dots(const Tensor& x, const Tensor& y) {
  return at::sum(x * y, {-1}, /*keepdim=*/false, x.scalar_type());
}

// Whether one product of what is below tells the samples'.
bool has_product(const BatchedCall& call) {
  const Tensor& x = call.tensor(0);
  const Tensor& y = call.tensor(1);
  const int64_t m = x.dim();
  const int64_t n = y.dim();
  if (m == 0 || n == 0 || x.scalar_type() != y.scalar_type() ||
      x.sym_size(-1) != y.sym_size(n == 1 ? 0 : -2)) {
    return false;
  }
  if (!call.is_batched(1)) {
    return call.is_batched(0) && n <= std::max<int64_t>(m, 2);
  }
  if (!call.is_batched(0)) {
    return n == 1 ? m <= 2 : m <= n;
  }
  return m == n || (m <= 2 && n <= 2);
}

// By the ranks of the samples.
Tensor product(const BatchedCall& call) {
  const int64_t m = call.rank(0);
  const int64_t n = call.rank(1);
  const Tensor x = call.value(0);
  const Tensor y = call.value(1);
  if (n == 1 && call.is_batched(1)) {
    if (!call.is_batched(0)) {
      return at::matmul(y, m == 2 ? x.t() : x);
    }
    return m == 1 ? dots(x, y) : at::matmul(x, y.unsqueeze(2)).squeeze(2);
  }
  const bool is_row = m == 1 && call.is_batched(0) && call.is_batched(1);
  return is_row ? at::matmul(x.unsqueeze(1), y).squeeze(1) : at::matmul(x, y);
}

bool matmul(BatchedCall& call, size_t) {
  return has_product(call) && call.give([&] { return product(call); });
}

// mm, mv, dot and bmm take samples of these ranks alone: a decimal digit each.
bool multiply(BatchedCall& call, size_t ranks) {
  const bool fits = call.rank(0) == static_cast<int64_t>(ranks / 10) &&
                    call.rank(1) == static_cast<int64_t>(ranks % 10) &&
                    (ranks != 33 || call.tensor(0).size(0) == call.tensor(1).size(0));
  return fits && matmul(call, 0);
}

bool outer(BatchedCall& call, size_t) {
  if (call.rank(0) != 1 || call.rank(1) != 1 || !(call.is_batched(0) || call.is_batched(1))) {
    return false;
  }
  return call.give([&] { return call.value(0).unsqueeze(-1) * call.value(1).unsqueeze(-2); });
}

// linear(x, weight, bias): x has any number of dimensions in front already.
bool linear(BatchedCall& call, size_t) {
  if (call.rank(0) == 0 || call.tensor(0).sym_size(-1) != call.tensor(1).sym_size(-1)) {
    return false;
  }
  if (call.only(0)) {
    return call.run();
  }
  const bool has_bias = call.has_tensor(2);
  const bool is_vector = call.rank(0) == 1;
  const bool fits =
      call.rank(1) == 2 && (!has_bias || call.rank(2) == 1) && (is_vector || call.rank(0) == 2);
  if (!call.is_batched(1) || !fits) {
    return false;
  }
  return call.give([&] {
    const Tensor given = call.expanded(0);
    const Tensor x = is_vector ? given.unsqueeze(1) : given;
    const Tensor weight = call.value(1).transpose(1, 2);
    const Tensor y =
        has_bias ? at::baddbmm(call.expanded(2).unsqueeze(1), x, weight) : at::bmm(x, weight);
    return is_vector ? y.squeeze(1) : y;
  });
}

// addmm(bias, x, y, *, beta, alpha)
bool addmm(BatchedCall& call, size_t) {
  const bool fits = call.rank(0) > 0 && call.rank(1) == 2 && call.rank(2) == 2 &&
                    call.tensor(1).size(1) == call.tensor(2).size(0);
  if (!fits || !(call.is_batched(1) || call.is_batched(2))) {
    return false;
  }
  const bool is_row = call.rank(0) == 1;
  const at::Scalar beta = call[3].toScalar();
  const at::Scalar alpha = call[4].toScalar();
  if (is_row && call.only(1)) {
    return call.give([&] {
      const Tensor x = call.value(1);
      return at::addmm(call.tensor(0), x.flatten(0, 1), call.tensor(2), beta, alpha)
          .unflatten(0, {x.size(0), x.size(1)});
    });
  }
  return call.give([&] {
    const Tensor bias = call.expanded(0);
    return at::baddbmm(
        is_row ? bias.unsqueeze(1) : bias, call.expanded(1), call.expanded(2), beta, alpha);
  });
}

} // namespace

void add_batched_products(BatchTable& rules) {
  rules.add({"matmul"}, {matmul});
  rules.add({"mm"}, {multiply, 22});
  rules.add({"mv"}, {multiply, 21});
  rules.add({"dot"}, {multiply, 11});
  rules.add({"bmm"}, {multiply, 33});
  rules.add({"outer", "ger"}, {outer});
  rules.add({"linear"}, {linear});
  rules.add({"addmm"}, {addmm});
}

} // namespace torchlayers
