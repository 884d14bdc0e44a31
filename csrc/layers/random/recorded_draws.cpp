#include "layers/random/recorded_draws.h"

#include "core/below.h"

namespace torchlayers {

bool DrawnOutsideLayer::draw(const Operator& op, Args& args) {
  const Below below(*this, op);
  return draw_(op, args);
}

} // namespace torchlayers
