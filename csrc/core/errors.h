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

// The class that Python gives an error: torchlayers/core/errors.py.
enum class ErrorClass : uint8_t {
  BatchedOperator,
  BatchedValue,
  EscapedTensor,
  InPlace,
  Randomness,
  Transform,
};

// NOTE [Errors with a class]
// Where an error reaches Python, torch makes a RuntimeError of every c10::Error; but of a
// torch::PyTorchError it makes what that says. So an error with a class is one, and no c10::Error:
// it passes the places that look at torch's errors. Those who have to see it too catch this, its
// other base. The core does not know Python, so a callback throws it.
class LayerError {
 public:
  virtual ~LayerError() = default;
  virtual const std::string& text() const = 0;
  // Appends it, as c10::Error does.
  virtual void add_context(const std::string& context) = 0;

  ErrorClass error_class = ErrorClass::Transform;
  bool was_said_again = false; // NOTE [An error under vmap]
};

// Throws the text, which `said` has made, as an error of the class.
[[noreturn]] inline void raise_text(
    ErrorClass error_class, const std::string& text, bool was_said_again = false) {
  callbacks.raise(error_class, text, was_said_again);
  TORCH_CHECK(false, text); // without Python
}

template <class... Parts>
[[noreturn]] void raise_as(
    ErrorClass error_class,
    Sentence<std::type_identity_t<Parts>...> sentence,
    const Parts&... parts) {
  raise_text(error_class, said(sentence.words, parts...));
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
