// Unions of index sets, in which sparsity detection spends its time
// (torchlayers/transforms/sparse/detection/index_sets.py). Tables are in the layout of CSR: set i
// is members[starts[i] .. starts[i + 1]], sorted, and set 0 is empty.
#include <ATen/EmptyTensor.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <iterator>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/device.h"
#include "python/bindings.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

using Ints = std::vector<int64_t>;

// A view of an int64 tensor on the CPU. The contiguous copy lives as long as the view.
struct Numbers {
  explicit Numbers(const at::Tensor& tensor) : held(tensor.contiguous()) {
    TORCH_CHECK(
        held.device().type() == kHost && held.scalar_type() == at::kLong,
        "torchlayers: index sets are int64 tensors on the CPU");
    data = held.const_data_ptr<int64_t>();
    size = held.numel();
  }
  int64_t operator[](int64_t i) const {
    return data[i];
  }

  at::Tensor held;
  const int64_t* data = nullptr;
  int64_t size = 0;
};

struct IndexSets {
  IndexSets(const at::Tensor& starts, const at::Tensor& members)
      : starts(starts), members(members) {}
  const int64_t* begin(int64_t id) const {
    return members.data + starts[id];
  }
  const int64_t* end(int64_t id) const {
    return members.data + starts[id + 1];
  }
  void check(const Numbers& ids) const {
    for (int64_t i = 0; i < ids.size; ++i) {
      TORCH_CHECK(ids[i] >= 0 && ids[i] < starts.size - 1, "torchlayers: no set has id ", ids[i]);
    }
  }

  Numbers starts;
  Numbers members;
};

at::Tensor as_tensor(const Ints& numbers) {
  const at::Tensor tensor =
      at::detail::empty_cpu({static_cast<int64_t>(numbers.size())}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

// The table under construction, and the ids in it of what was asked for.
struct Result {
  Ints ids;
  Ints starts{0, 0};
  Ints members;

  // Ends the set that was appended to members, and returns its id.
  int64_t end_set() {
    const auto size = static_cast<int64_t>(members.size());
    if (size == starts.back()) {
      return 0;
    }
    starts.push_back(size);
    return static_cast<int64_t>(starts.size()) - 2;
  }
  std::tuple<at::Tensor, at::Tensor, at::Tensor> tensors() const {
    return {as_tensor(ids), as_tensor(starts), as_tensor(members)};
  }
};

// The unions of pairs of sets, one of each operand. Each pair of ids is united once if `share`.
Result merge(
    const Numbers& left_ids,
    const IndexSets& left,
    const Numbers& right_ids,
    const IndexSets& right,
    bool share) {
  left.check(left_ids);
  right.check(right_ids);
  TORCH_CHECK(left_ids.size == right_ids.size, "torchlayers: index sets of unequal shapes");
  Result result;
  result.ids.reserve(left_ids.size);
  std::unordered_map<int64_t, int64_t> known;
  const int64_t right_count = right.starts.size;
  for (int64_t i = 0; i < left_ids.size; ++i) {
    const int64_t a = left_ids[i];
    const int64_t b = right_ids[i];
    if (share) {
      const auto [found, is_new] = known.try_emplace(a * right_count + b, 0);
      if (is_new) {
        std::set_union(
            left.begin(a),
            left.end(a),
            right.begin(b),
            right.end(b),
            std::back_inserter(result.members));
        found->second = result.end_set();
      }
      result.ids.push_back(found->second);
      continue;
    }
    std::set_union(
        left.begin(a),
        left.end(a),
        right.begin(b),
        right.end(b),
        std::back_inserter(result.members));
    result.ids.push_back(result.end_set());
  }
  return result;
}

// The union of each group's sets, from pairs of a group and an id in any order.
Result gather(
    int64_t count,
    const Numbers& groups,
    const Numbers& ids,
    const IndexSets& table,
    int64_t width) {
  table.check(ids);
  TORCH_CHECK(groups.size == ids.size, "torchlayers: a group for each id");
  Ints ends(count + 1, 0);
  for (int64_t i = 0; i < groups.size; ++i) {
    TORCH_CHECK(groups[i] >= 0 && groups[i] < count, "torchlayers: there is no group ", groups[i]);
    ++ends[groups[i] + 1];
  }
  for (int64_t g = 0; g < count; ++g) {
    ends[g + 1] += ends[g];
  }
  Ints places(ends.begin(), ends.end() - 1);
  Ints sorted(groups.size);
  for (int64_t i = 0; i < groups.size; ++i) {
    sorted[places[groups[i]]++] = ids[i];
  }
  Result result;
  result.ids.reserve(count);
  Ints seen_id(table.starts.size, -1); // the last group that has the set
  Ints seen(width, -1);                // the last group that has the member
  for (int64_t g = 0; g < count; ++g) {
    const auto first = result.members.size();
    bool is_sorted = true;
    for (int64_t i = ends[g]; i < ends[g + 1]; ++i) {
      const int64_t id = sorted[i];
      if (seen_id[id] == g) {
        continue;
      }
      seen_id[id] = g;
      for (const int64_t* member = table.begin(id); member != table.end(id); ++member) {
        if (seen[*member] != g) {
          seen[*member] = g;
          is_sorted &= result.members.size() == first || result.members.back() < *member;
          result.members.push_back(*member);
        }
      }
    }
    if (!is_sorted) {
      std::sort(result.members.begin() + static_cast<int64_t>(first), result.members.end());
    }
    result.ids.push_back(result.end_set());
  }
  return result;
}

} // namespace

void bind_index_sets(py::module_& m) {
  m.def(
      "merge_index_sets",
      [](const at::Tensor& left_ids,
         const at::Tensor& left_starts,
         const at::Tensor& left_members,
         const at::Tensor& right_ids,
         const at::Tensor& right_starts,
         const at::Tensor& right_members,
         bool share) {
        const py::gil_scoped_release release;
        const IndexSets left(left_starts, left_members);
        const IndexSets right(right_starts, right_members);
        return merge(Numbers(left_ids), left, Numbers(right_ids), right, share).tensors();
      });
  m.def(
      "unite_index_sets",
      [](int64_t count,
         const at::Tensor& groups,
         const at::Tensor& ids,
         const at::Tensor& starts,
         const at::Tensor& members,
         int64_t width) {
        const py::gil_scoped_release release;
        const IndexSets table(starts, members);
        return gather(count, Numbers(groups), Numbers(ids), table, width).tensors();
      });
}

} // namespace torchlayers
