// Errors in one form: what happened, where in the user's code, what to do.
#pragma once

#include <c10/util/Exception.h>

#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/callbacks.h"

namespace torchlayers {

// The text of an error message, with a {} for each part. The count is checked at compile time.
template <class... Parts>
struct Sentence {
  consteval Sentence(const char* words) : words(words) {
    size_t places = 0;
    for (const char* c = words; *c != '\0'; ++c) {
      places += c[0] == '{' && c[1] == '}' ? 1 : 0;
    }
    if (places != sizeof...(Parts)) {
      throw "as many {} as parts";
    }
  }
  std::string_view words;
};

// "torchlayers: ", the message, and the user's line that Python is executing.
template <class... Parts>
std::string said(std::string_view words, const Parts&... parts) {
  std::ostringstream text;
  text << "torchlayers: ";
  [[maybe_unused]] const auto say = [&](const auto& part) {
    const size_t place = words.find("{}");
    text << words.substr(0, place) << part;
    words.remove_prefix(place + 2);
  };
  (say(parts), ...);
  text << words << callbacks.python_location();
  return text.str();
}

template <class... Parts>
[[noreturn]] void raise(Sentence<std::type_identity_t<Parts>...> sentence, const Parts&... parts) {
  TORCH_CHECK(false, said(sentence.words, parts...));
}

// The same as a NotImplementedError.
template <class... Parts>
[[noreturn]] void raise_not_implemented(
    Sentence<std::type_identity_t<Parts>...> sentence, const Parts&... parts) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, said(sentence.words, parts...));
}

} // namespace torchlayers
