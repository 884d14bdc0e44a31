// The matmul family and einsum.

#include <algorithm>
#include <array>
#include <string>

#include "core/aten_functions.h"
#include "rules/batching/families.h"
#include "rules/batching/products.h"

namespace torchlayers {
namespace {

using at::Tensor;

// The dot products of corresponding vectors.
Tensor dots(const Tensor& x, const Tensor& y) {
  return at::sum(x * y, {-1}, /*keepdim=*/false, x.scalar_type());
}

// Whether a single product of the values computes the samples' products.
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

// The product, by the ranks of the samples.
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

// The ranks of a sample of each factor.
struct Ranks {
  int64_t first;
  int64_t second;
};

// mm, mv, dot and bmm, which take samples of exactly these ranks.
template <Ranks ranks>
bool multiply(BatchedCall& call, size_t) {
  const bool are_batches = ranks.first == 3;
  const bool fits = call.rank(0) == ranks.first && call.rank(1) == ranks.second &&
                    (!are_batches || call.tensor(0).sym_size(0) == call.tensor(1).sym_size(0));
  return fits && matmul(call, 0);
}

bool outer(BatchedCall& call, size_t) {
  if (call.rank(0) != 1 || call.rank(1) != 1 || !(call.is_batched(0) || call.is_batched(1))) {
    return false;
  }
  return call.give([&] { return call.value(0).unsqueeze(-1) * call.value(1).unsqueeze(-2); });
}

// linear(x, weight, bias): x may have any number of leading dimensions anyway.
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
                    call.tensor(1).sym_size(1) == call.tensor(2).sym_size(0);
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
          .unflatten_symint(0, {x.sym_size(0), x.sym_size(1)});
    });
  }
  return call.give([&] {
    const Tensor bias = call.expanded(0);
    return at::baddbmm(
        is_row ? bias.unsqueeze(1) : bias, call.expanded(1), call.expanded(2), beta, alpha);
  });
}

// An einsum equation, parsed and checked against the samples.
class Equation {
 public:
  Equation(std::string text, c10::ArrayRef<c10::IValue> operands) {
    text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
    const size_t arrow = text.find("->");
    read_terms(text.substr(0, arrow));
    fits_ = terms_.size() == operands.size();
    for (size_t i = 0; fits_ && i < terms_.size(); ++i) {
      fits_ = fits_term(terms_[i], operands[i].toTensor());
    }
    if (fits_) {
      result_ = arrow == std::string::npos ? implied() : text.substr(arrow + 2);
      fits_ = fits_result();
    }
  }

  bool fits() const {
    return fits_;
  }

  // Whether it is a matrix product of x and y, along x's last dimension and y's first.
  bool is_matmul() const {
    if (terms_.size() != 2 || terms_[0].empty() || terms_[1].size() != 2 || has_ellipsis_) {
      return false;
    }
    const std::string& x = terms_[0];
    const std::string& y = terms_[1];
    for (size_t i = 0; i < x.size(); ++i) {
      if (x.find(x[i]) != i) {
        return false;
      }
    }
    return x.back() == y[0] && x.find(y[1]) == std::string::npos && !stretches_ &&
           result_ == x.substr(0, x.size() - 1) + y[1];
  }

  // The equation with an additional letter for the batch dimension, in front of these operands'
  // subscripts and the result's; none if no letter is left.
  template <class IsBatched>
  std::optional<std::string> physical_sizes(const IsBatched& is_batched) const {
    char batch = 'A';
    while (batch <= 'z' && (!is_letter(batch) || counts_[batch] > 0)) {
      ++batch;
    }
    if (batch > 'z') {
      return std::nullopt;
    }
    std::string text;
    for (size_t i = 0; i < terms_.size(); ++i) {
      text += i == 0 ? "" : ",";
      text += is_batched(i) ? batch + terms_[i] : terms_[i];
    }
    return text + "->" + batch + result_;
  }

 private:
  static constexpr const char* kEllipsis = "...";

  static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  }

  void read_terms(const std::string& text) {
    size_t start = 0;
    while (true) {
      const size_t end = text.find(',', start);
      terms_.push_back(text.substr(start, end - start));
      if (end == std::string::npos) {
        return;
      }
      start = end + 1;
    }
  }

  // The letters of a subscript, without an ellipsis; none if it has other characters.
  std::optional<std::string> letters_of(std::string term) {
    const size_t dots = term.find(kEllipsis);
    if (dots != std::string::npos) {
      has_ellipsis_ = true;
      term.erase(dots, 3);
    }
    return std::all_of(term.begin(), term.end(), is_letter) ? std::optional<std::string>(term)
                                                            : std::nullopt;
  }

  bool fits_term(const std::string& term, const Tensor& operand) {
    const auto letters = letters_of(term);
    const size_t dots = term.find(kEllipsis);
    const auto rank = static_cast<size_t>(operand.dim());
    const bool has_dots = dots != std::string::npos;
    if (!letters || letters->size() > rank || (letters->size() < rank && !has_dots) ||
        operand.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
      return false;
    }
    const size_t hidden = rank - letters->size();
    hidden_.resize(std::max(hidden_.size(), hidden), 1);
    for (size_t i = 0; i < letters->size(); ++i) {
      const char letter = (*letters)[i];
      const size_t dim = i < dots ? i : i + hidden;
      const size_t before = letters->find(letter);
      if (before < i &&
          operand.size(before < dots ? before : before + hidden) != operand.size(dim)) {
        return false; // the diagonal of a matrix that is not square
      }
      const bool is_new = counts_[letter]++ == 0;
      if (!stretch(sizes_[letter], operand.size(dim), is_new)) {
        return false;
      }
    }
    for (size_t i = 0; i < hidden; ++i) {
      if (!stretch(hidden_[i], operand.size(dots + hidden - 1 - i), false)) {
        return false;
      }
    }
    return true;
  }

  // Broadcasts sizes of 1.
  bool stretch(int64_t& known, int64_t size, bool is_new) {
    stretches_ = stretches_ || (!is_new && known != size);
    if (is_new || known == 1) {
      known = size;
    }
    return size == 1 || size == known;
  }

  // The letters that occur once, in order, after the ellipsis.
  std::string implied() const {
    std::string once = has_ellipsis_ ? kEllipsis : "";
    for (int letter = 'A'; letter <= 'z'; ++letter) {
      once += counts_[letter] == 1 ? std::string(1, static_cast<char>(letter)) : "";
    }
    return once;
  }

  bool fits_result() {
    const bool had_ellipsis = has_ellipsis_;
    const auto letters = letters_of(result_);
    if (!letters || has_ellipsis_ != had_ellipsis) {
      return false;
    }
    for (size_t i = 0; i < letters->size(); ++i) {
      if (counts_[(*letters)[i]] == 0 || letters->find((*letters)[i]) != i) {
        return false;
      }
    }
    return true;
  }

  std::vector<std::string> terms_;
  std::string result_;
  std::array<int, 128> counts_{};
  std::array<int64_t, 128> sizes_{};
  std::vector<int64_t> hidden_; // dimensions in an ellipsis, the last first
  bool has_ellipsis_ = false;
  bool stretches_ = false;
  bool fits_ = false;
};

// einsum(equation, operands, *, path)
bool einsum(BatchedCall& call, size_t) {
  const auto operands = call[1].toListRef();
  const auto is_batched = [&](size_t i) { return call.is_batched(operands[i].toTensor()); };
  size_t batched = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    batched += is_batched(i) ? 1 : 0;
  }
  const Equation equation(call[0].toStringRef(), operands);
  if (batched == 0 || !equation.fits()) {
    return false;
  }
  if (equation.is_matmul() && is_batched(0)) {
    const Tensor& x = operands[0].toTensor();
    const Tensor& y = operands[1].toTensor();
    const bool is_one = !is_batched(1) || x.dim() == 2;
    if (is_one && x.scalar_type() == y.scalar_type()) {
      return call.give([&] { return at::matmul(call.value(x), call.value(y)); });
    }
  }
  auto physical_sizes = equation.physical_sizes(is_batched);
  if (!physical_sizes) {
    return false;
  }
  call.set(0, std::move(*physical_sizes));
  return call.run();
}

bool is_one_sparse_matrix(const BatchedCall& call, size_t i) {
  return !call.is_batched(i) && call.rank(i) == 2 && call.tensor(i).layout() != at::kStrided;
}

// Concatenates the samples' columns, or their rows: torch has no product of a sparse matrix and a
// batch.
Tensor product_by_sparse(const BatchedCall& call, size_t first, size_t second) {
  const bool is_first = is_one_sparse_matrix(call, first);
  const Tensor sparse = call.value(is_first ? first : second);
  const Tensor given = call.value(is_first ? second : first);
  if (given.dim() == 2) {
    return is_first ? at::mm(sparse, given.t()).t() : at::mm(given, sparse);
  }
  if (is_first) {
    const c10::SymInt batch = given.sym_size(0);
    const c10::SymInt columns = given.sym_size(2);
    return at::mm(sparse, given.movedim(0, 1).flatten(1))
        .unflatten_symint(1, {batch, columns})
        .movedim(1, 0);
  }
  return at::mm(given.flatten(0, 1), sparse)
      .unflatten_symint(0, {given.sym_size(0), given.sym_size(1)});
}

bool may_multiply_by_sparse(const BatchedCall& call, size_t first, size_t second) {
  const bool is_first = is_one_sparse_matrix(call, first);
  const size_t given = is_first ? second : first;
  const int64_t rank = call.rank(given);
  return (is_first || is_one_sparse_matrix(call, second)) && call.is_batched(given) &&
         call.tensor(given).layout() == at::kStrided && (rank == 1 || rank == 2) &&
         call.tensor(first).sym_size(-1) ==
             call.tensor(second).sym_size(call.rank(second) == 1 ? 0 : -2);
}

} // namespace

bool multiply_by_sparse(BatchedCall& call) {
  const std::string& name = call.op().schema().name();
  if (name == "aten::mm" || name == "aten::mv" || name == "aten::matmul") {
    return may_multiply_by_sparse(call, 0, 1) &&
           call.give([&] { return product_by_sparse(call, 0, 1); });
  }
  const bool is_sum = name == "aten::addmm" || name == "aten::_sparse_addmm";
  if (!is_sum || call.rank(0) != 2 || !may_multiply_by_sparse(call, 1, 2)) {
    return false;
  }
  const at::Scalar beta = call[3].toScalar();
  const at::Scalar alpha = call[4].toScalar();
  return call.give([&] {
    const Tensor product = product_by_sparse(call, 1, 2) * alpha;
    return beta.equal(0) ? product : call.value(0) * beta + product;
  });
}

void add_batched_products(BatchingTable& rules) {
  rules.add({"matmul"}, {matmul});
  rules.add({"mm"}, {multiply<Ranks{.first = 2, .second = 2}>});
  rules.add({"mv"}, {multiply<Ranks{.first = 2, .second = 1}>});
  rules.add({"dot"}, {multiply<Ranks{.first = 1, .second = 1}>});
  rules.add({"bmm"}, {multiply<Ranks{.first = 3, .second = 3}>});
  rules.add({"outer", "ger"}, {outer});
  rules.add({"linear"}, {linear});
  rules.add({"addmm"}, {addmm});
  rules.add({"einsum"}, {einsum});
}

} // namespace torchlayers
