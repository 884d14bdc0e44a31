#include "core/errors.h"

namespace torchlayers {

std::string (*python_location)() = [] { return std::string(); };

} // namespace torchlayers
