// The operators of keyed random numbers. A key is an int64. Keys of any shape are drawn from at
// once: the result has the numbers of each. NOTE [Numbers of a key].
//
// On the CPU philox.cpp computes them. On other devices operators on integer tensors do, as many as
// the generator has steps. Both give the same numbers.
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "core/aten_functions.h"
#include "core/errors.h"
#include "rules/random/gamma_derivatives.h"
#include "rules/random/philox.h"
#include "rules/random/philox_tensors.h"
#include "rules/random/poisson_binomial.h"
#include "rules/random/random.h"

namespace torchlayers {
namespace {

using at::Tensor;
using c10::SymInt;

using Numbers = std::string_view; // "bits", "uniform" or "normal"

// ---- arguments

void check_keys(const Tensor& key) {
  if (key.scalar_type() != at::kLong) {
    raise(
        "a random key has dtype {}, but keys are int64: create them with torchlayers.random.key.",
        key.scalar_type());
  }
}

void check_dtype(Numbers numbers, at::ScalarType dtype) {
  const bool fits = numbers == "bits" ? dtype == at::kInt || dtype == at::kLong
                                      : dtype == at::kFloat || dtype == at::kDouble ||
                                            dtype == at::kHalf || dtype == at::kBFloat16;
  if (!fits) {
    raise(
        "random numbers ({}) can't have dtype {}: pass {}.",
        numbers,
        dtype,
        numbers == "bits" ? "int32 or int64" : "float16, bfloat16, float32 or float64");
  }
}

at::SymDimVector shape_of(const Tensor& key, c10::SymIntArrayRef size) {
  at::SymDimVector shape(key.sym_sizes());
  shape.insert(shape.end(), size.begin(), size.end());
  return shape;
}

// ---- on the CPU

template <class Draw>
Tensor drawn(
    Numbers numbers,
    const Tensor& key,
    at::IntArrayRef size,
    at::ScalarType dtype,
    const Draw& draw) {
  check_keys(key);
  check_dtype(numbers, dtype);
  at::DimVector shape(key.sizes());
  shape.insert(shape.end(), size.begin(), size.end());
  Tensor out = at::empty(shape, key.options().dtype(dtype));
  if (out.numel() != 0) {
    const Tensor keys = key.contiguous();
    draw(keys.const_data_ptr<int64_t>(), keys.numel(), out.numel() / keys.numel(), out);
  }
  return out;
}

template <class Number>
void draw_floats(
    Numbers numbers, const int64_t* keys, int64_t count, int64_t of_each, Tensor& out) {
  auto* data = out.mutable_data_ptr<Number>();
  numbers == "uniform" ? philox::uniform(keys, count, of_each, data)
                       : philox::normal(keys, count, of_each, data);
}

Tensor draw_floats_on_processor(
    Numbers numbers, const Tensor& key, at::IntArrayRef size, at::ScalarType dtype) {
  const auto draw = [&](const int64_t* keys, int64_t count, int64_t of_each, Tensor& out) {
    switch (dtype) {
      case at::kFloat:
        return draw_floats<float>(numbers, keys, count, of_each, out);
      case at::kDouble:
        return draw_floats<double>(numbers, keys, count, of_each, out);
      case at::kHalf:
        return draw_floats<at::Half>(numbers, keys, count, of_each, out);
      default:
        return draw_floats<at::BFloat16>(numbers, keys, count, of_each, out);
    }
  };
  return drawn(numbers, key, size, dtype, draw);
}

Tensor bits_on_processor(
    const Tensor& key, at::IntArrayRef size, at::ScalarType dtype, int64_t use) {
  const auto draw = [&](const int64_t* keys, int64_t count, int64_t of_each, Tensor& out) {
    const auto purpose = static_cast<philox::Use>(use);
    if (dtype == at::kInt) {
      philox::bits(keys, count, of_each, purpose, out.mutable_data_ptr<int32_t>());
    } else {
      philox::bits(keys, count, of_each, purpose, out.mutable_data_ptr<int64_t>());
    }
  };
  return drawn("bits", key, size, dtype, draw);
}

Tensor uniform_on_processor(const Tensor& key, at::IntArrayRef size, at::ScalarType dtype) {
  return draw_floats_on_processor("uniform", key, size, dtype);
}

Tensor normal_on_processor(const Tensor& key, at::IntArrayRef size, at::ScalarType dtype) {
  return draw_floats_on_processor("normal", key, size, dtype);
}

void check_data(const Tensor& data) {
  if (data.scalar_type() != at::kLong) {
    raise("fold_in: the data must be int64, got {}.", data.scalar_type());
  }
}

// A parameter for each number: its shape begins with the key's.
void check_parameter(const Tensor& key, const Tensor& parameter) {
  check_keys(key);
  TORCH_INTERNAL_ASSERT(
      parameter.dim() >= key.dim() && parameter.sym_sizes().slice(0, key.dim()) == key.sym_sizes());
}

void check_gamma(const Tensor& key, const Tensor& alpha) {
  check_parameter(key, alpha);
  check_dtype("gamma", alpha.scalar_type());
}

void check_poisson(const Tensor& key, const Tensor& rate) {
  check_parameter(key, rate);
  TORCH_INTERNAL_ASSERT(rate.scalar_type() == at::kDouble);
}

void check_binomial(const Tensor& key, const Tensor& count, const Tensor& prob) {
  check_parameter(key, count);
  TORCH_INTERNAL_ASSERT(
      count.scalar_type() == at::kDouble && prob.scalar_type() == at::kDouble &&
      count.sym_sizes() == prob.sym_sizes());
}

Tensor fold_in_on_processor(const Tensor& key, const Tensor& data) {
  check_keys(key);
  check_data(data);
  const auto sizes = at::infer_size_dimvector(key.sizes(), data.sizes());
  const Tensor keys = key.expand(sizes).contiguous();
  const Tensor numbers = data.expand(sizes).contiguous();
  Tensor out = at::empty(sizes, key.options());
  const auto* key_of = keys.const_data_ptr<int64_t>();
  const auto* data_of = numbers.const_data_ptr<int64_t>();
  auto* into = out.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < out.numel(); ++i) {
    into[i] = philox::folded(key_of[i], data_of[i]);
  }
  return out;
}

// Below the smallest normal number, its logarithm and quotients by it would lose precision.
Tensor at_least_smallest(const Tensor& x) {
  const double smallest = x.scalar_type() == at::kDouble ? std::numeric_limits<double>::min()
                          : x.scalar_type() == at::kHalf ? 0x1p-14
                                                         : std::numeric_limits<float>::min();
  return x.clamp_min(smallest);
}

// `draw` computes number i of a key, for each element of `like`, a tensor of doubles.
template <class Draw>
Tensor one_by_one(const Tensor& key, const Tensor& like, const Draw& draw) {
  const Tensor keys = key.contiguous();
  Tensor out = at::empty_like(like, at::MemoryFormat::Contiguous);
  const auto* key_of = keys.const_data_ptr<int64_t>();
  auto* into = out.mutable_data_ptr<double>();
  const int64_t of_each = out.numel() / std::max<int64_t>(keys.numel(), 1);
  at::parallel_for(0, out.numel(), 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      into[i] = draw(key_of[i / of_each], i % of_each, i);
    }
  });
  return out;
}

Tensor gamma_on_processor(const Tensor& key, const Tensor& alpha) {
  check_gamma(key, alpha);
  const Tensor shapes = alpha.to(at::kDouble).contiguous();
  const auto* shape_of = shapes.const_data_ptr<double>();
  const Tensor out = one_by_one(key, shapes, [&](int64_t key, int64_t place, int64_t i) {
    return philox::gamma(key, place, shape_of[i]);
  });
  return at_least_smallest(out.to(alpha.scalar_type()));
}

Tensor poisson_on_processor(const Tensor& key, const Tensor& rate) {
  check_poisson(key, rate);
  const Tensor rates = rate.contiguous();
  const auto* rate_of = rates.const_data_ptr<double>();
  return one_by_one(key, rates, [&](int64_t key, int64_t place, int64_t i) {
    return counts::poisson(key, place, rate_of[i]);
  });
}

Tensor binomial_on_processor(const Tensor& key, const Tensor& count, const Tensor& prob) {
  check_binomial(key, count, prob);
  const Tensor numbers = count.contiguous();
  const Tensor probs = prob.contiguous();
  const auto* count_of = numbers.const_data_ptr<double>();
  const auto* prob_of = probs.const_data_ptr<double>();
  return one_by_one(key, numbers, [&](int64_t key, int64_t place, int64_t i) {
    return counts::binomial(key, place, count_of[i], prob_of[i]);
  });
}

// ---- on any device

Tensor bits_of_tensors(
    const Tensor& key, c10::SymIntArrayRef size, at::ScalarType dtype, int64_t use) {
  check_keys(key);
  check_dtype("bits", dtype);
  return random_of_tensors::bits(key, size, dtype, static_cast<philox::Use>(use));
}

Tensor uniform_of_tensors(const Tensor& key, c10::SymIntArrayRef size, at::ScalarType dtype) {
  check_keys(key);
  check_dtype("uniform", dtype);
  return random_of_tensors::uniform(key, size, dtype);
}

Tensor normal_of_tensors(const Tensor& key, c10::SymIntArrayRef size, at::ScalarType dtype) {
  check_keys(key);
  check_dtype("normal", dtype);
  return random_of_tensors::normal(key, size, dtype);
}

Tensor fold_in_of_tensors(const Tensor& key, const Tensor& data) {
  check_keys(key);
  check_data(data);
  return random_of_tensors::folded(key, data);
}

Tensor gamma_of_tensors(const Tensor& key, const Tensor& alpha) {
  check_gamma(key, alpha);
  return alpha.numel() == 0 ? at::empty_like(alpha)
                            : at_least_smallest(random_of_tensors::gamma(key, alpha));
}

Tensor poisson_of_tensors(const Tensor& key, const Tensor& rate) {
  check_poisson(key, rate);
  return rate.numel() == 0 ? at::empty_like(rate) : counts::poisson(key, rate);
}

Tensor binomial_of_tensors(const Tensor& key, const Tensor& count, const Tensor& prob) {
  check_binomial(key, count, prob);
  return count.numel() == 0 ? at::empty_like(count) : counts::binomial(key, count, prob);
}

// ---- on the meta device

Tensor bits_of_meta(
    const Tensor& key, c10::SymIntArrayRef size, at::ScalarType dtype, int64_t /*use*/) {
  check_keys(key);
  check_dtype("bits", dtype);
  return at::empty_symint(shape_of(key, size), key.options().dtype(dtype));
}

Tensor uniform_of_meta(const Tensor& key, c10::SymIntArrayRef size, at::ScalarType dtype) {
  check_keys(key);
  check_dtype("uniform", dtype);
  return at::empty_symint(shape_of(key, size), key.options().dtype(dtype));
}

Tensor fold_in_of_meta(const Tensor& key, const Tensor& data) {
  check_keys(key);
  check_data(data);
  return key + data;
}

Tensor gamma_of_meta(const Tensor& key, const Tensor& alpha) {
  check_gamma(key, alpha);
  return at::empty_like(alpha);
}

Tensor poisson_of_meta(const Tensor& key, const Tensor& rate) {
  check_poisson(key, rate);
  return at::empty_like(rate);
}

Tensor binomial_of_meta(const Tensor& key, const Tensor& count, const Tensor& prob) {
  check_binomial(key, count, prob);
  return at::empty_like(count);
}

constexpr std::array kSchemas{
    "random_bits(Tensor key, SymInt[] size, ScalarType dtype, int use=0) -> Tensor",
    "random_uniform(Tensor key, SymInt[] size, ScalarType dtype) -> Tensor",
    "random_normal(Tensor key, SymInt[] size, ScalarType dtype) -> Tensor",
    "random_fold_in(Tensor key, Tensor data) -> Tensor",
    // The parameters' shape begins with the key's.
    "random_gamma(Tensor key, Tensor alpha) -> Tensor",
    // These take and return doubles.
    "random_poisson(Tensor key, Tensor rate) -> Tensor",
    "random_binomial(Tensor key, Tensor count, Tensor prob) -> Tensor",
    // _standard_gamma_grad, with derivatives for plain autograd: by the shape and by the number.
    "gamma_slope(Tensor alpha, Tensor number) -> Tensor",
    "gamma_slope_by_shape(Tensor alpha, Tensor number, Tensor slope) -> Tensor",
    "gamma_slope_by_number(Tensor alpha, Tensor number, Tensor slope) -> Tensor",
    // The same, always as operators on tensors: compilers are shown these.
    "random_bits_of_tensors(Tensor key, SymInt[] size, ScalarType dtype, int use=0) -> Tensor",
    "random_uniform_of_tensors(Tensor key, SymInt[] size, ScalarType dtype) -> Tensor",
    "random_normal_of_tensors(Tensor key, SymInt[] size, ScalarType dtype) -> Tensor",
    "random_fold_in_of_tensors(Tensor key, Tensor data) -> Tensor",
};

TORCH_LIBRARY_FRAGMENT(torchlayers, library) {
  for (const char* schema : kSchemas) {
    library.def(schema, {at::Tag::pt2_compliant_tag});
  }
}

TORCH_LIBRARY_IMPL(torchlayers, CPU, library) {
  library.impl("random_bits", bits_on_processor);
  library.impl("random_uniform", uniform_on_processor);
  library.impl("random_normal", normal_on_processor);
  library.impl("random_fold_in", fold_in_on_processor);
  library.impl("random_gamma", gamma_on_processor);
  library.impl("random_poisson", poisson_on_processor);
  library.impl("random_binomial", binomial_on_processor);
}

TORCH_LIBRARY_IMPL(torchlayers, CompositeExplicitAutograd, library) {
  library.impl("random_bits", bits_of_tensors);
  library.impl("random_uniform", uniform_of_tensors);
  library.impl("random_normal", normal_of_tensors);
  library.impl("random_fold_in", fold_in_of_tensors);
  library.impl("random_gamma", gamma_of_tensors);
  library.impl("gamma_slope", at::_standard_gamma_grad);
  library.impl("random_poisson", poisson_of_tensors);
  library.impl("random_binomial", binomial_of_tensors);
}

TORCH_LIBRARY_IMPL(torchlayers, CompositeImplicitAutograd, library) {
  library.impl("random_bits_of_tensors", bits_of_tensors);
  library.impl("random_uniform_of_tensors", uniform_of_tensors);
  library.impl("random_normal_of_tensors", normal_of_tensors);
  library.impl("random_fold_in_of_tensors", fold_in_of_tensors);
  library.impl("gamma_slope_by_shape", gamma_slope_by_shape);
  library.impl("gamma_slope_by_number", gamma_slope_by_number);
}

TORCH_LIBRARY_IMPL(torchlayers, Meta, library) {
  library.impl("random_bits", bits_of_meta);
  library.impl("random_uniform", uniform_of_meta);
  library.impl("random_normal", uniform_of_meta);
  library.impl("random_fold_in", fold_in_of_meta);
  library.impl("random_gamma", gamma_of_meta);
  library.impl("random_poisson", poisson_of_meta);
  library.impl("random_binomial", binomial_of_meta);
}

} // namespace

Tensor fold_in(const Tensor& key, const Tensor& data) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("torchlayers::random_fold_in", "")
                             .typed<Tensor(const Tensor&, const Tensor&)>();
  return op.call(key, data);
}

} // namespace torchlayers
