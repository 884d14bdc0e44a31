// Which values of a chain of stages to keep, and which to recompute, within a number of bytes.
#pragma once

#include <cstdint>
#include <vector>

namespace torchlayers {

// NOTE [A chain within a budget]
// A function is a chain of stages; between two of them is a boundary, the values that later stages
// read. The reverse pass needs the residuals of each stage, the last one's first, and those can be
// computed from the boundary before the stage. If the stages s..t are still to be reversed, and the
// boundary before s is there, one of three things is done:
//   - a single stage is run, and keeps all its residuals (it is reversed next);
//   - stage s is run and keeps its residuals, or some of them, until it is reversed, after s+1..t;
//   - s..k-1 are run and keep nothing, the boundary before k is kept until k..t are reversed, and
//     then s..k-1 are to be reversed from the boundary before s.
// Dynamic programming over s, t and the remaining memory finds the cheapest. For equal stages this
// gives Griewank and Walther's binomial schedule ("Algorithm 799: Revolve", 2000); for others that
// of Beaumont et al. ("Optimal checkpointing for heterogeneous chains", 2019). Memory is counted
// beyond the boundary before s, which the caller has counted; memory that two boundaries share
// counts once, for the later one.

// One choice of what a stage keeps until it is reversed, besides the boundary before it.
struct WayToKeep {
  int64_t kept;    // bytes, including those of the next boundary
  int64_t running; // the peak while the stage is run
  double again;    // the cost of recomputing its other residuals
};

struct Stage {
  double forward;  // the cost of running it
  double saving;   // the least cost of computing its residuals
  int64_t passing; // the peak in bytes while it is run and keeps only the next boundary
  int64_t saved;   // the same while it is run for its residuals, all of which are there at its end
  std::vector<WayToKeep> ways;
};

class ChainPlan {
 public:
  // between[s][k - s - 1]: the bytes of the boundary before k, k > s, beyond those of the one
  // before s.
  ChainPlan(std::vector<Stage> stages, std::vector<std::vector<int64_t>> between, int64_t budget);

  // The fewest bytes within which the whole chain can be reversed.
  int64_t least() const {
    return least_;
  }

  // The first action if s..t are to be reversed within so many bytes: k > 0 to keep the boundary
  // before k; 0 for a single stage; -1 - i to keep stage s in its i-th way. With too few bytes, the
  // action for the fewest that suffice.
  int64_t first(size_t s, size_t t, int64_t bytes) const;

  // The total cost within the budget.
  double cost() const {
    return cost_;
  }

 private:
  size_t at(size_t s, size_t t) const {
    return s * stages_ + t;
  }
  int64_t in_units(int64_t bytes) const {
    return (bytes + unit_ - 1) / unit_;
  }
  void find_least(
      const std::vector<Stage>& stages, const std::vector<std::vector<int64_t>>& between);

  size_t stages_;
  int64_t unit_;
  int64_t units_; // of the budget
  int64_t least_ = 0;
  double cost_ = 0;
  std::vector<std::vector<int16_t>> choices_; // for s..t, by units; kImpossible
};

} // namespace torchlayers
