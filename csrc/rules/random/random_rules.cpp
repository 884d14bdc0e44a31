// Derivatives and batching rules of random numbers and of the slopes of gamma numbers.
#include "rules/batching/families.h"
#include "rules/batching/pointwise.h"
#include "rules/families.h"
#include "rules/random/gamma_derivatives.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

// A batch of keys means more keys, along a leading dimension.

bool of_keys(BatchedCall& call, size_t) {
  return call.is_batched(0) && call.run();
}

// random_gamma(key, alpha), and other operators with a parameter for each number
bool of_keys_and_parameters(BatchedCall& call, size_t) {
  if (!call.any_batched()) {
    return false;
  }
  return call.give(
      [&] { return call.call(call.args_with([&](size_t i) { return call.expanded(i); })); });
}

} // namespace

void add_random(Table& rules) {
  for (const char* name : {"bits", "uniform", "normal", "fold_in", "poisson", "binomial"}) {
    rules[std::string("torchlayers::random_") + name].constant();
  }
  // The derivative by the shape, at a fixed value of the distribution function. NOTE [Gamma
  // numbers].
  rules["torchlayers::random_gamma"].terms(TERM(1, t * at::_standard_gamma_grad(c[1], y)));
  for (const char* name : {"_standard_gamma_grad", "torchlayers::gamma_slope"}) {
    rules[name].terms(
        TERM(0, t * gamma_slope_by_shape(c[0], c[1], y)),
        TERM(1, t * gamma_slope_by_number(c[0], c[1], y)));
  }
  rules["_sample_dirichlet"].along(Along::Mixes);
}

void add_batched_random(BatchingTable& rules) {
  rules.add(
      {"torchlayers::random_bits", "torchlayers::random_uniform", "torchlayers::random_normal"},
      {of_keys});
  rules.add({"torchlayers::random_fold_in"}, {line_up});
  rules.add(
      {"torchlayers::random_gamma", "torchlayers::random_poisson", "torchlayers::random_binomial"},
      {of_keys_and_parameters});
  rules.add(
      {"_standard_gamma_grad", "torchlayers::gamma_slope", "_dirichlet_grad"},
      {line_up, /*has_one_shape=*/1}); // their kernels do not broadcast
}

} // namespace torchlayers
