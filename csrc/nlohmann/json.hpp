// The part of nlohmann's JSON library that torch's headers use. ATen/functorch/Interpreter.h
// includes the library, which torch's wheels leave out, to write levels to strings and to read
// them. Nothing here does either, so declarations are enough. The library itself would add a third
// to the templates that each unit instantiates before its own code.
#pragma once

#include <string>

namespace nlohmann {

struct json {
  json();
  template <class T>
  explicit json(const T& value);

  std::string dump() const;
  static json parse(const std::string& text);
  template <class T>
  T get() const;
};

} // namespace nlohmann
