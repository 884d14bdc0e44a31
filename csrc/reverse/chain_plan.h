// What to keep of a chain of stages, and what to compute again, within a number of bytes.
#pragma once

#include <cstdint>
#include <vector>

namespace torchlayers {

// NOTE [A chain within a budget]
// A function is a chain of stages; between two of them stand the values that later ones read, a
// boundary. The reverse pass wants what each stage saves, the last one's first, and a stage's can
// be computed from the boundary before it. Where the stages s..t are still to be reversed, and the
// boundary before s is there, one of three things is done:
//   - a single stage is run, and keeps all that it saves (it is reversed next);
//   - stage s is run and keeps what it saves, or some of it, until it is reversed, after s+1..t;
//   - s..k-1 are run and keep nothing, the boundary before k is kept until k..t are reversed, and
//     then s..k-1 are to be reversed from the boundary before s.
// Which one costs the least in the memory that is left is told by dynamic programming over s, t and
// that memory. For equal stages this gives Griewank and Walther's binomial schedule ("Algorithm
// 799: Revolve", 2000); for others that of Beaumont et al. ("Optimal checkpointing for
// heterogeneous chains", 2019). Memory is counted beyond the boundary before s, which whoever asks
// has counted; what two boundaries share counts for the later one once.

// What a stage keeps until it is reversed, beside the boundary before it.
struct WayToKeep {
  int64_t kept;    // bytes, those of the next boundary among them
  int64_t running; // the most that is held while the stage is run
  double again;    // what it costs to compute the rest of what it saves
};

struct Stage {
  double forward;  // what it costs to run it
  double saving;   // what it costs to compute what it saves, at least
  int64_t passing; // the most bytes held while it is run and keeps nothing but the next boundary
  int64_t saved;   // while it is run for what it saves, which is all there at its end
  std::vector<WayToKeep> ways;
};

class ChainPlan {
 public:
  // between[s][k - s - 1]: the bytes of the boundary before k, k > s, beyond those of the one
  // before s.
  ChainPlan(std::vector<Stage> stages, std::vector<std::vector<int64_t>> between, int64_t budget);

  // The fewest bytes in which the whole chain can be reversed.
  int64_t least() const {
    return least_;
  }

  // What to do first where s..t are to be reversed within so many bytes: k > 0 to keep the boundary
  // before k; 0 for a single stage; -1 - i to keep stage s in its i-th way. As in the least bytes
  // that suffice, where so many don't.
  int64_t first(size_t s, size_t t, int64_t bytes) const;

  // The cost of all, within the budget.
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
  std::vector<std::vector<int16_t>> choices_; // of s..t by units; kImpossible
};

} // namespace torchlayers
