#include "dispatch/typed/typed.h"

namespace torchlayers {

std::vector<std::string>& names_of_typed() {
  static auto* names = new std::vector<std::string>();
  return *names;
}

c10::OperatorName name_of_aten(const std::string& name) {
  const size_t dot = name.find('.');
  const bool has_overload = dot != std::string::npos;
  return {"aten::" + name.substr(0, dot), has_overload ? name.substr(dot + 1) : ""};
}

} // namespace torchlayers
