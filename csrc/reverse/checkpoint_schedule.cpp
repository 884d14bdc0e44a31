#include "reverse/checkpoint_schedule.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace torchlayers {
namespace {

constexpr int16_t kImpossible = std::numeric_limits<int16_t>::min();
// Memory is counted in at most this many units, if the sizes have no coarser common measure.
constexpr int64_t kUnits = 512;
constexpr int64_t kMostUnits = 2048;

int64_t common_measure(
    const std::vector<Stage>& stages, const std::vector<std::vector<int64_t>>& between) {
  int64_t measure = 0;
  for (const Stage& stage : stages) {
    measure = std::gcd(measure, std::gcd(stage.passing, stage.saved));
    for (const WayToKeep& way : stage.ways) {
      measure = std::gcd(measure, std::gcd(way.kept, way.running));
    }
  }
  for (const auto& row : between) {
    for (const int64_t bytes : row) {
      measure = std::gcd(measure, bytes);
    }
  }
  return std::max<int64_t>(measure, 1);
}

// The peak in bytes, beyond the boundary before s, while s..k-1 are run and keep nothing, for each
// k > s.
std::vector<int64_t> while_passing(
    const std::vector<Stage>& stages, const std::vector<int64_t>& beyond, size_t s) {
  std::vector<int64_t> most;
  int64_t so_far = 0;
  for (size_t i = s; i + 1 < stages.size(); ++i) {
    const int64_t before = i == s ? 0 : beyond[i - s - 1];
    so_far = std::max(so_far, before + stages[i].passing);
    most.push_back(std::max(so_far, beyond[i - s]));
  }
  return most;
}

} // namespace

ChainPlan::ChainPlan(
    std::vector<Stage> stages, std::vector<std::vector<int64_t>> between, int64_t budget)
    : stages_(stages.size()) {
  unit_ = common_measure(stages, between);
  if (budget / unit_ > kMostUnits) {
    unit_ = std::max<int64_t>(budget / kUnits, 1);
  }
  find_least(stages, between);
  if (least_ > budget) {
    units_ = 0;
    return;
  }
  // Rounding must not make a possible plan impossible.
  for (Stage& stage : stages) {
    stage.passing = in_units(stage.passing);
    stage.saved = in_units(stage.saved);
    for (WayToKeep& way : stage.ways) {
      way.kept = in_units(way.kept);
      way.running = in_units(way.running);
    }
  }
  for (auto& row : between) {
    std::ranges::transform(row, row.begin(), [this](int64_t bytes) { return in_units(bytes); });
  }
  const int64_t least = least_;
  find_least(stages, between);
  units_ = std::max(budget / unit_, least_);
  least_ = least;

  constexpr float kNever = std::numeric_limits<float>::infinity();
  const auto count = static_cast<size_t>(units_) + 1;
  std::vector<std::vector<float>> costs(stages_ * stages_);
  choices_.resize(stages_ * stages_);
  std::vector<double> forward_before(stages_ + 1, 0);
  std::vector<std::vector<int64_t>> passing;
  for (size_t s = 0; s < stages_; ++s) {
    forward_before[s + 1] = forward_before[s] + stages[s].forward;
    passing.push_back(while_passing(stages, between[s], s));
  }
  for (size_t length = 1; length <= stages_; ++length) {
    for (size_t s = 0; s + length <= stages_; ++s) {
      const size_t t = s + length - 1;
      auto& cost = costs[at(s, t)];
      auto& choice = choices_[at(s, t)];
      cost.assign(count, kNever);
      choice.assign(count, kImpossible);
      const Stage& stage = stages[s];
      const auto offer = [&](size_t units, float price, int16_t what) {
        if (price < cost[units]) {
          cost[units] = price;
          choice[units] = what;
        }
      };
      if (length == 1) {
        for (auto units = static_cast<size_t>(stage.saved); units < count; ++units) {
          offer(units, static_cast<float>(stage.saving), 0);
        }
        continue;
      }
      for (size_t i = 0; i < stage.ways.size(); ++i) {
        const WayToKeep& way = stage.ways[i];
        const auto& rest = costs[at(s + 1, t)];
        const auto price = static_cast<float>(stage.forward + way.again);
        const int64_t needed = std::max({way.running, way.kept, stage.saved});
        for (auto units = static_cast<size_t>(needed); units < count; ++units) {
          offer(
              units,
              price + rest[units - static_cast<size_t>(way.kept)],
              static_cast<int16_t>(-1 - static_cast<int64_t>(i)));
        }
      }
      for (size_t k = s + 1; k <= t; ++k) {
        const auto price = static_cast<float>(forward_before[k] - forward_before[s]);
        const auto kept = static_cast<size_t>(between[s][k - s - 1]);
        const auto& later = costs[at(k, t)];
        const auto& earlier = costs[at(s, k - 1)];
        for (auto units = static_cast<size_t>(passing[s][k - s - 1]); units < count; ++units) {
          offer(units, price + later[units - kept] + earlier[units], static_cast<int16_t>(k));
        }
      }
    }
  }
  cost_ = costs[at(0, stages_ - 1)].back();
}

void ChainPlan::find_least(
    const std::vector<Stage>& stages, const std::vector<std::vector<int64_t>>& between) {
  std::vector<int64_t> least(stages_ * stages_, 0);
  for (size_t s = stages_; s-- > 0;) {
    const auto passing = while_passing(stages, between[s], s);
    least[at(s, s)] = stages[s].saved;
    for (size_t t = s + 1; t < stages_; ++t) {
      int64_t found = std::numeric_limits<int64_t>::max();
      for (const WayToKeep& way : stages[s].ways) {
        const int64_t rest = way.kept + least[at(s + 1, t)];
        found = std::min(found, std::max({way.running, stages[s].saved, rest}));
      }
      for (size_t k = s + 1; k <= t; ++k) {
        const int64_t later = between[s][k - s - 1] + least[at(k, t)];
        found = std::min(found, std::max({passing[k - s - 1], later, least[at(s, k - 1)]}));
      }
      least[at(s, t)] = found;
    }
  }
  least_ = least[at(0, stages_ - 1)];
}

int64_t ChainPlan::first(size_t s, size_t t, int64_t bytes) const {
  const auto& choice = choices_[at(s, t)];
  const int64_t units = std::clamp<int64_t>(bytes / unit_, 0, units_);
  for (auto i = static_cast<size_t>(units); i < choice.size(); ++i) {
    if (choice[i] != kImpossible) {
      return choice[i];
    }
  }
  return s == t ? 0 : static_cast<int64_t>(s + (t - s + 1) / 2);
}

} // namespace torchlayers
