#include "sparse/orders.h"

namespace torchlayers::sparse {

Buckets::Buckets(std::vector<int64_t> keys)
    : keys_(keys.size(), kNone), next_(keys.size(), kNone), before_(keys.size(), kNone) {
  const int64_t most = keys.empty() ? 0 : *std::max_element(keys.begin(), keys.end());
  // A key can grow up to the number of vertices.
  heads_.assign(std::max<size_t>(most, keys.size()) + 1, kNone);
  low_ = most;
  // In reverse, so that of equal keys the first vertex is found first.
  for (Vertex v = static_cast<Vertex>(keys.size()) - 1; v >= 0; --v) {
    insert(v, keys[v]);
  }
}

Vertex Buckets::smallest() {
  while (heads_[low_] == kNone) {
    ++low_;
  }
  return heads_[low_];
}

Vertex Buckets::largest() {
  while (heads_[high_] == kNone) {
    --high_;
  }
  return heads_[high_];
}

void Buckets::remove(Vertex v) {
  unlink(v);
  keys_[v] = kNone;
}

void Buckets::change(Vertex v, int64_t key) {
  unlink(v);
  insert(v, key);
}

void Buckets::insert(Vertex v, int64_t key) {
  keys_[v] = key;
  next_[v] = heads_[key];
  before_[v] = kNone;
  if (heads_[key] != kNone) {
    before_[heads_[key]] = v;
  }
  heads_[key] = v;
  low_ = std::min(low_, key);
  high_ = std::max(high_, key);
  ++count_;
}

void Buckets::unlink(Vertex v) {
  if (before_[v] == kNone) {
    heads_[keys_[v]] = next_[v];
  } else {
    next_[before_[v]] = next_[v];
  }
  if (next_[v] != kNone) {
    before_[next_[v]] = before_[v];
  }
  --count_;
}

} // namespace torchlayers::sparse
