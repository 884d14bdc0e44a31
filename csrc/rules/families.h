// The families of rules, one per file.
#pragma once

#include "rules/table.h"

namespace torchlayers {

void add_unary(Table& rules);
void add_binary(Table& rules);
void add_selection(Table& rules);
void add_activations(Table& rules);
void add_products(Table& rules);
void add_convolutions(Table& rules);
void add_reductions(Table& rules);
void add_distances(Table& rules);
void add_sorting(Table& rules);
void add_softmax(Table& rules);
void add_losses(Table& rules);
void add_ctc(Table& rules);
void add_norms(Table& rules);
void add_pooling(Table& rules);
void add_padding(Table& rules);
void add_resampling(Table& rules);
void add_grid_sampler(Table& rules);
void add_indexing(Table& rules);
void add_bags(Table& rules);
void add_scatter(Table& rules);
void add_shapes(Table& rules);
void add_linalg(Table& rules);
void add_least_squares(Table& rules);
void add_determinants(Table& rules);
void add_decompositions(Table& rules);
void add_lu(Table& rules);
void add_householder(Table& rules);
void add_eigen_svd(Table& rules);
void add_cumulative(Table& rules);
void add_fft(Table& rules);
void add_constants(Table& rules);
void add_collectives(Table& rules);
void add_axes(Table& rules);
void add_random(Table& rules);

inline void add_families(Table& rules) {
  add_unary(rules);
  add_binary(rules);
  add_selection(rules);
  add_activations(rules);
  add_products(rules);
  add_convolutions(rules);
  add_reductions(rules);
  add_distances(rules);
  add_sorting(rules);
  add_softmax(rules);
  add_losses(rules);
  add_ctc(rules);
  add_norms(rules);
  add_pooling(rules);
  add_padding(rules);
  add_resampling(rules);
  add_grid_sampler(rules);
  add_indexing(rules);
  add_bags(rules);
  add_scatter(rules);
  add_shapes(rules);
  add_linalg(rules);
  add_least_squares(rules);
  add_determinants(rules);
  add_decompositions(rules);
  add_lu(rules);
  add_householder(rules);
  add_eigen_svd(rules);
  add_cumulative(rules);
  add_fft(rules);
  add_constants(rules);
  add_collectives(rules);
  add_axes(rules);
  add_random(rules);
}

} // namespace torchlayers
