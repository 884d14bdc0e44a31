// Solutions of systems of linear equations, and their factorizations.
#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/aten_functions.h"
#include "rules/batching/families.h"

namespace torchlayers {
namespace {

using at::Tensor;

// The operands of a solve of A x = b, or x A = b: a vector is treated as a matrix of one column,
// and both have equal ranks below; otherwise torch might take the batch of matrices for a matrix of
// vectors.
struct System {
  int64_t a_rank;
  int64_t b_rank; // as a matrix
  bool is_vector;
  bool is_left;

  int64_t rank() const {
    return std::max(a_rank, b_rank);
  }
  Tensor a(const BatchedCall& call) const {
    return call.is_batched(0) ? BatchedCall::raised(call.value(0), rank()) : call.tensor(0);
  }
  Tensor b(const BatchedCall& call) const {
    const Tensor b = call.expanded(1);
    return BatchedCall::raised(is_vector ? b.unsqueeze(-1) : b, rank());
  }
  Tensor like_b(const Tensor& x) const {
    return is_vector ? x.squeeze(-1) : x;
  }
};

// None if the shapes or dtypes do not fit, which torch says.
std::optional<System> system_of(const BatchedCall& call) {
  const Tensor& a = call.tensor(0);
  const Tensor& b = call.tensor(1);
  const bool is_left = call.flag(2);
  const int64_t m = a.dim();
  if (m < 2 || b.dim() < 1 || a.scalar_type() != b.scalar_type()) {
    return std::nullopt;
  }
  const bool is_vector =
      b.dim() == 1 || (b.dim() == m - 1 && b.sizes() == a.sizes().slice(0, m - 1));
  const int64_t n = b.dim() + (is_vector ? 1 : 0);
  const int64_t rows = is_vector || !is_left ? b.size(-1) : b.size(-2);
  if (a.size(-1) != a.size(-2) || a.size(-1) != rows || (is_vector && !is_left)) {
    return std::nullopt;
  }
  return System{m, n, is_vector, is_left};
}

// linalg_solve(A, b, *, left)
bool solve(BatchedCall& call, size_t) {
  const auto system = system_of(call);
  if (!system || !(call.is_batched(0) || call.is_batched(1))) {
    return false;
  }
  const int64_t m = system->a_rank, n = system->b_rank;
  const Tensor& a = call.tensor(0);
  const Tensor& b = call.tensor(1);
  const bool lines_up =
      m == 2 || n == 2 || (m == n && a.sizes().slice(0, m - 2) == b.sizes().slice(0, m - 2));
  return lines_up && call.give([&] {
    return system->like_b(at::linalg_solve(system->a(call), system->b(call), system->is_left));
  });
}

// _linalg_solve_ex(A, b, *, left, check_errors) -> (X, LU, pivots, info), of which all but X have
// A's leading dimensions. torch's rule fails where A and b have different ranks.
bool solve_ex(BatchedCall& call, size_t) {
  const auto system = system_of(call);
  if (!system || !at::are_expandable(
                     call.tensor(0).sizes().slice(0, system->a_rank - 2),
                     call.tensor(1).sizes().slice(0, system->b_rank - 2))) {
    return false;
  }
  const bool is_batched = call.is_batched(0);
  return call.give_some({true, is_batched, is_batched, is_batched}, [&] {
    auto [x, lu, pivots, info] =
        at::_linalg_solve_ex(system->a(call), system->b(call), system->is_left, call.flag(3));
    for (int64_t i = system->a_rank; is_batched && i < system->rank(); ++i) {
      lu = lu.squeeze(1);
      pivots = pivots.squeeze(1);
      info = info.squeeze(1);
    }
    return std::vector<Tensor>{
        system->like_b(x), std::move(lu), std::move(pivots), std::move(info)};
  });
}

// NOTE [A batch in front of LU]
// torch (2.13) steps from one LU to the next by the stride of the dimension before the matrix. The
// stride of a dimension of size one is meaningless: a batch of LUs that is unsqueezed, to align
// with additional right-hand sides, gives wrong numbers. So there is only the batch dimension in
// front if the samples are matrices, whose right-hand sides become columns of one; otherwise all
// leading dimensions are merged into one.
Tensor solved_in_columns(const Tensor& lu, const Tensor& pivots, const Tensor& b, bool adjoint) {
  const Tensor rows_first = b.movedim(-2, 1);
  const auto sizes = rows_first.sym_sizes();
  const Tensor x = at::linalg_lu_solve(lu, pivots, rows_first.flatten(2), /*left=*/true, adjoint);
  return x.reshape_symint(sizes).movedim(1, -2);
}

Tensor solved_in_rows(const Tensor& lu, const Tensor& pivots, const Tensor& b, bool adjoint) {
  const auto sizes = b.sym_sizes();
  const Tensor rows = b.flatten(1, -2);
  return at::linalg_lu_solve(lu, pivots, rows, /*left=*/false, adjoint).reshape_symint(sizes);
}

// linalg_lu_solve(LU, pivots, B, *, left, adjoint). NOTE [A batch in front of LU].
bool lu_solve(BatchedCall& call, size_t) {
  const Tensor& lu = call.tensor(0);
  const Tensor& pivots = call.tensor(1);
  const Tensor& b = call.tensor(2);
  const int64_t m = lu.dim();
  const int64_t n = b.dim();
  const bool is_left = call.flag(3);
  const bool is_adjoint = call.flag(4);
  if (m < 2 || n < 2 || pivots.dim() != m - 1 || lu.scalar_type() != b.scalar_type() ||
      lu.sym_size(-1) != lu.sym_size(-2) || lu.sym_size(-1) != b.sym_size(is_left ? -2 : -1) ||
      lu.sym_sizes().slice(0, m - 1) != pivots.sym_sizes()) {
    return false;
  }
  if (!call.is_batched(0) && !call.is_batched(1)) {
    return m == 2 && call.run();
  }
  if (m == 2) {
    return call.give([&] {
      const auto solved = is_left ? solved_in_columns : solved_in_rows;
      return solved(call.expanded(0), call.expanded(1), call.expanded(2), is_adjoint);
    });
  }
  return call.give([&] {
    const int64_t rank = std::max(m, n);
    const Tensor given = BatchedCall::raised(call.expanded(2), rank);
    const Tensor factors = BatchedCall::raised(call.expanded(0), rank);
    const auto batch = at::infer_size_symint(
        factors.sym_sizes().slice(0, rank - 1), given.sym_sizes().slice(0, rank - 1));
    const auto in_one = [&](const Tensor& x, int64_t of_one) {
      auto sizes = std::vector<c10::SymInt>(batch.begin(), batch.end());
      sizes.insert(sizes.end(), x.sym_sizes().end() - of_one, x.sym_sizes().end());
      return x.expand_symint(sizes).flatten(0, rank - 2);
    };
    const Tensor x = at::linalg_lu_solve(
        in_one(factors, 2),
        in_one(BatchedCall::raised(call.expanded(1), rank - 1), 1),
        in_one(given, 2),
        is_left,
        is_adjoint);
    return x.unflatten_symint(0, batch);
  });
}

// lu_unpack(LU, pivots, unpack_data, unpack_pivots): results that are not requested are empty.
// torch's own rule would give them a batch dimension, and also fails in derivatives under a vmap of
// their own.
bool lu_unpack(BatchedCall& call, size_t) {
  const bool of_data = call.flag(2);
  const bool of_pivots = call.flag(3);
  if (call.rank(0) < 2 || call.rank(1) != call.rank(0) - 1) {
    return false;
  }
  return call.give_some({of_pivots, of_data, of_data}, [&] {
    auto [p, l, u] = at::lu_unpack(call.expanded(0), call.expanded(1), of_data, of_pivots);
    return std::vector<Tensor>{std::move(p), std::move(l), std::move(u)};
  });
}

} // namespace

void add_batched_linear_solve(BatchingTable& rules) {
  rules.add({"linalg_solve"}, {solve});
  rules.add({"_linalg_solve_ex"}, {solve_ex});
  rules.add({"linalg_lu_solve"}, {lu_solve});
  rules.add({"lu_unpack"}, {lu_unpack});
}

} // namespace torchlayers
