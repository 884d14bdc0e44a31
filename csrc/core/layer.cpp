#include "core/layer.h"

#include <ostream>

namespace torchlayers {

namespace {

uint64_t next_number() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

} // namespace

Layer::Layer(Kind kind) : kind_(kind), number_(next_number()) {}

const char* kind_name(Layer::Kind kind) {
  switch (kind) {
    case Layer::Kind::Grad:
      return "grad";
    case Layer::Kind::Jvp:
      return "jvp";
    case Layer::Kind::Vmap:
      return "vmap";
    case Layer::Kind::Functionalize:
      return "functionalize";
  }
  return "?";
}

const char* randomness_name(Randomness randomness) {
  switch (randomness) {
    case Randomness::Error:
      return "error";
    case Randomness::Same:
      return "same";
    case Randomness::Different:
      return "different";
    default:
      return "?";
  }
}

std::string Layer::name() const {
  return std::string(kind_name(kind_)) + " (level " + std::to_string(level_) + ")";
}

std::ostream& operator<<(std::ostream& out, const Layer& layer) {
  return out << layer.level() << ":" << kind_name(layer.kind());
}

} // namespace torchlayers
