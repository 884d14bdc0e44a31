#include "core/layer.h"

#include <atomic>
#include <ostream>

#include "core/below.h"
#include "core/skip_autograd.h"

namespace torchlayers {

namespace {

uint64_t next_number() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

} // namespace

Layer::Layer(bool is_autograd) : is_autograd_(is_autograd), number_(next_number()) {}

bool* Layer::begin(int64_t level) {
  level_ = level;
  hooks_around_ = saved_hooks_on();
  is_alive_ = true;
  return &is_alive_;
}

std::string Layer::name() const {
  return std::string(kind()) + " (level " + std::to_string(level_) + ")";
}

void Layer::call_below(const Operator& op, Args& args, bool are_plain) const {
  Below below(*this, op);
  below.skip_autograd(op, are_plain);
  op.call(args);
}

std::ostream& operator<<(std::ostream& out, const Layer& layer) {
  return out << layer.level() << ":" << layer.kind();
}

} // namespace torchlayers
