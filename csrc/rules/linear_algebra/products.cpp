// Matrix products, and sums of one with another tensor.
#include "core/errors.h"
#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Scalar;
using at::Tensor;

// outer and addr accept operands of different dtypes; the products in their gradients don't.
Tensor conjugated_like(const Tensor& g, const Tensor& operand) {
  const Tensor factor = conjugated(operand);
  return factor.scalar_type() == g.scalar_type() ? factor : factor.to(g.scalar_type());
}

Tensor transposed(const Tensor& matrix) {
  return conjugated(matrix).transpose(-2, -1);
}

// A vector, a matrix or a batch of them, as one matrix.
Tensor rows_of(const Tensor& tensor) {
  switch (tensor.dim()) {
    case 1:
      return tensor.unsqueeze(0);
    case 2:
      return tensor;
    default:
      return tensor.flatten(0, -2);
  }
}

// linear(x, weight), where x is (…, in) and weight is (out, in) or (in).
Tensor linear_input(const Tensor& g, const Tensor& weight) {
  if (weight.dim() == 1) {
    return g.unsqueeze(-1) * conjugated(weight);
  }
  return g.dim() == 2 ? g.mm(conjugated(weight)) : g.matmul(conjugated(weight));
}

Tensor linear_weight(const Tensor& g, const Tensor& x) {
  const Tensor outputs = g.dim() < x.dim() ? g.unsqueeze(-1) : g; // where the weight is a vector
  return rows_of(outputs).t().mm(rows_of(conjugated(x)));
}

// The gradients by the factors of a matrix product. For a column-major factor the gradient is
// column-major too: then the factor's transpose, the tensor that the user has, gets a contiguous
// one.
Tensor mm_first(const Tensor& g, const Tensor& b, bool is_column_major) {
  return is_column_major ? conjugated(b).mm(g.t()).t() : g.mm(transposed(b));
}

Tensor mm_second(const Tensor& g, const Tensor& a, bool is_column_major) {
  return is_column_major ? g.t().mm(conjugated(a)).t() : transposed(a).mm(g);
}

// matmul of vectors, matrices and batches: the gradient by the factor that had this rank.
// Dimensions that were broadcast are summed later.
Tensor matmul_first(const Tensor& g, size_t rank, const Tensor& b, bool is_column_major) {
  if (b.dim() == 1) {
    return g.unsqueeze(-1) * conjugated(b);
  }
  if (rank == 1) {
    return b.dim() == 2 ? conjugated(b).mv(g) : conjugated(b).matmul(g.unsqueeze(-1)).squeeze(-1);
  }
  const bool are_matrices = rank == 2 && b.dim() == 2;
  return are_matrices ? mm_first(g, b, is_column_major) : g.matmul(transposed(b));
}

Tensor matmul_second(const Tensor& g, const Tensor& a, size_t rank, bool is_column_major) {
  if (a.dim() == 1) {
    return rank == 1 ? g * conjugated(a) : conjugated(a).unsqueeze(-1) * g.unsqueeze(-2);
  }
  if (rank == 1) {
    return a.dim() == 2 ? transposed(a).mv(g) : transposed(a).matmul(g.unsqueeze(-1)).squeeze(-1);
  }
  if (rank == 2) { // the batch dimensions are flattened into rows
    return mm_second(rows_of(g), rows_of(a), is_column_major);
  }
  return transposed(a).matmul(g);
}

// beta * self + alpha * product(a, b), for the tangents that exist.
template <class Product, class Fused>
void add_product(JvpCall& call, const Product& product, const Fused& fused) {
  call.run();
  const Scalar beta = call.scalar(3);
  const Scalar alpha = call.scalar(4);
  Tensor sum;
  if (call.has_tangent(0)) {
    sum = times(call.tangent(0), beta);
  }
  const auto add = [&](const Tensor& a, const Tensor& b) {
    sum = sum.defined() ? fused(sum, a, b, alpha) : times(product(a, b), alpha);
  };
  if (call.has_tangent(1)) {
    add(call.tangent(1), call[2]);
  }
  if (call.has_tangent(2)) {
    add(call[1], call.tangent(2));
  }
  call.set_tangent(0, sum);
}

void linear(JvpCall& call) {
  call.run();
  Tensor bias = call.has_tangent(2) ? call.tangent(2) : Tensor();
  Tensor sum;
  if (call.has_tangent(0)) {
    sum = at::linear(call.tangent(0), call[1], std::exchange(bias, {}));
  }
  if (call.has_tangent(1)) {
    sum = sum_of({sum, at::linear(call[0], call.tangent(1), std::exchange(bias, {}))});
  }
  call.set_tangent(0, sum.defined() ? sum : bias);
}

// name(sum, a, b, beta, alpha), where `product` is an expression of a and b, with the gradients by
// them.
#define ADDS_PRODUCT(name, product, by_first, by_second)                                   \
  rules[#name]                                                                             \
      .jvp([](JvpCall& call) {                                                             \
        add_product(                                                                       \
            call,                                                                          \
            [](const Tensor& a, const Tensor& b) { return product; },                      \
            [](const Tensor& sum, const Tensor& a, const Tensor& b, const Scalar& alpha) { \
              return at::name(sum, a, b, 1, alpha);                                        \
            });                                                                            \
      })                                                                                   \
      .vjp(                                                                                \
          VJP(0, times(g, conjugated(c.scalar(3)))),                                       \
          VJP(1, times(by_first, conjugated(c.scalar(4)))),                                \
          VJP(2, times(by_second, conjugated(c.scalar(4)))))

// einsum(equation, operands, path), linear in each operand.
void einsum(JvpCall& call) {
  call.run();
  const at::ArrayRef<Tensor> tangents = call.tangents(1);
  const std::vector<Tensor> operands = call.arg(1).toTensorVector();
  Tensor sum;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (tangents[i].defined()) {
      std::vector<Tensor> replaced = operands;
      replaced[i] = tangents[i];
      sum = sum_of({sum, call.with({{1, c10::List<Tensor>(replaced)}})});
    }
  }
  call.set_tangent(0, sum);
}

// beta * self + alpha * (a b), where a or b is sparse and self is dense.
void sparse_addmm(JvpCall& call) {
  call.run();
  Tensor sum;
  if (call.has_tangent(0)) {
    sum = times(call.tangent(0), call.scalar(3));
  }
  const auto add = [&](const Tensor& a, const Tensor& b) {
    sum = sum_of({sum, times(at::mm(a, b), call.scalar(4))});
  };
  if (call.has_tangent(1)) {
    add(call.tangent(1), call[2]);
  }
  if (call.has_tangent(2)) {
    add(call[1], call.tangent(2));
  }
  call.set_tangent(0, sum);
}

// beta * self + alpha * (a b), evaluated at the elements that self has.
void sampled_addmm(JvpCall& call) {
  call.run();
  const auto add = [&](const Tensor& to, const at::Scalar& beta, const Tensor& a, const Tensor& b) {
    return at::sparse_sampled_addmm(to, a, b, beta, call.scalar(4));
  };
  Tensor sum;
  if (call.has_tangent(0)) {
    sum = call.tangent(0) * call.scalar(3);
  }
  for (const size_t i : {1, 2}) {
    if (call.has_tangent(i)) {
      const Tensor& a = i == 1 ? call.tangent(1) : call[1];
      const Tensor& b = i == 2 ? call.tangent(2) : call[2];
      sum = sum.defined() ? add(sum, 1, a, b) : add(call[0], 0, a, b);
    }
  }
  call.set_tangent(0, sum);
}

bool have_same_places(const Tensor& one, const Tensor& other) {
  if (one.layout() != other.layout() || one._nnz() != other._nnz()) {
    return false;
  }
  switch (one.layout()) {
    case at::kSparse:
      return at::equal(one._indices(), other._indices());
    case at::kSparseCsr:
    case at::kSparseBsr:
      return at::equal(one.crow_indices(), other.crow_indices()) &&
             at::equal(one.col_indices(), other.col_indices());
    default:
      return at::equal(one.ccol_indices(), other.ccol_indices()) &&
             at::equal(one.row_indices(), other.row_indices());
  }
}

// Linear where primal and tangent have the same sparsity pattern. torch treats _values as a
// constant, although its own gradients call it.
void values(JvpCall& call) {
  call.run();
  if (!have_same_places(call[0], call.tangent(0))) {
    raise_not_implemented(
        "jvp can't differentiate the values of a sparse tensor whose tangent has another sparsity "
        "pattern. Give the tangent the primal's indices, or use to_dense().");
  }
  const Tensor& tangent = call.tangent(0);
  call.set_tangent(0, tangent.layout() == at::kSparse ? tangent._values() : tangent.values());
}

// Operators that create and multiply sparse tensors. In reverse mode torch's autograd
// differentiates them, because it knows which gradients are sparse too. Its forward mode has no
// formulas for them.
void add_sparse(Table& rules) {
  rules["_sparse_addmm"].jvp(sparse_addmm);
  rules["_sparse_sparse_matmul"].linear_in(0, 1);
  rules["sparse_sampled_addmm"].jvp(sampled_addmm);
  rules["_sparse_coo_tensor_with_dims_and_tensors"].linear_in(4);
  rules["sparse_compressed_tensor.comp_plain_value_size"].linear_in(2);
  rules["_sparse_sum.dim"].linear_in(0);
  rules["_coalesce"].linear_in(0);
  rules["sparse_mask"].linear_in(0);
  rules["_to_dense"].linear_in(0);
  for (const char* to_sparse :
       {"_to_sparse",
        "_to_sparse.sparse_dim",
        "_to_sparse_csr",
        "_to_sparse_csc",
        "_to_sparse_bsr",
        "_to_sparse_bsc"}) {
    rules[to_sparse].linear_in(0); // a tangent has a sparsity pattern of its own
  }
  rules["_values"].jvp(values);
  rules["values"].jvp(values);
}

} // namespace

void add_products(Table& rules) {
  BILINEAR("mm", mm_first(g, c[1], c.is_column_major(0)), mm_second(g, c[0], c.is_column_major(1)))
      .contracts(0, 1, "ik,kj->ij");
  BILINEAR("bmm", g.bmm(transposed(c[1])), transposed(c[0]).bmm(g)).contracts(0, 1, "bik,bkj->bij");
  BILINEAR("mv", g.outer(conjugated(c[1])), transposed(c[0]).mv(g)).contracts(0, 1, "ik,k->i");
  BILINEAR("dot", g * conjugated(c[1]), g * conjugated(c[0])).contracts(0, 1, "k,k->");
  BILINEAR("vdot", conjugated(g) * c[1], g * c[0]).contracts(0, 1, "k,k->");
  BILINEAR("outer", g.mv(conjugated_like(g, c[1])), g.t().mv(conjugated_like(g, c[0])));
  BILINEAR(
      "matmul",
      matmul_first(g, c.sizes_of(0).size(), c[1], c.is_column_major(0)),
      matmul_second(g, c[0], c.sizes_of(1).size(), c.is_column_major(1)));
  BILINEAR(
      "linalg_cross",
      at::linalg_cross(conjugated(c[1]), g, c.dim(2)),
      at::linalg_cross(g, conjugated(c[0]), c.dim(2)));
  rules["einsum"].jvp(einsum);
  rules["_trilinear"].linear_in(0, 1, 2).vjp(
      VJP(0,
          at::_trilinear(
              g,
              conjugated(c[1]),
              conjugated(c[2]),
              c.integers(6),
              c.integers(4),
              c.integers(5),
              c.integers(3))),
      VJP(1,
          at::_trilinear(
              conjugated(c[0]),
              g,
              conjugated(c[2]),
              c.integers(3),
              c.integers(6),
              c.integers(5),
              c.integers(4))),
      VJP(2,
          at::_trilinear(
              conjugated(c[0]),
              conjugated(c[1]),
              g,
              c.integers(3),
              c.integers(4),
              c.integers(6),
              c.integers(5))));
  // A gradient expands the dimensions that the result sums over, and vice versa.
  ADDS_PRODUCT(
      addmm,
      a.mm(b),
      mm_first(g, c[2], c.is_column_major(1)),
      mm_second(g, c[1], c.is_column_major(2)))
      .contracts(1, 2, "ik,kj->ij");
  ADDS_PRODUCT(addmv, a.mv(b), g.outer(conjugated(c[2])), transposed(c[1]).mv(g))
      .contracts(1, 2, "ik,k->i");
  ADDS_PRODUCT(baddbmm, a.bmm(b), g.bmm(transposed(c[2])), transposed(c[1]).bmm(g))
      .contracts(1, 2, "bik,bkj->bij");
  ADDS_PRODUCT(addbmm, a.bmm(b).sum(0), g.matmul(transposed(c[2])), transposed(c[1]).matmul(g))
      .contracts(1, 2, "bik,bkj->ij");
  ADDS_PRODUCT(addr, a.outer(b), g.mv(conjugated_like(g, c[2])), g.t().mv(conjugated_like(g, c[1])))
      .contracts(1, 2, "i,j->ij");
  rules["linear"]
      .jvp(linear)
      .vjp(VJP(0, linear_input(g, c[1])), VJP(1, linear_weight(g, x)), VJP(2, g))
      .contracts(0, 1, "...k,jk->...j");
  rules["_addmm_activation"].pairs(1, 2, "ik,kj->ij");
  add_sparse(rules);
}

} // namespace torchlayers
