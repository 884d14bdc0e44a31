// Enters and leaves a layer as Python's context manager protocol does.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "core/entry.h"
#include "layers/vmap/vmap.h"

namespace torchlayers {

// The end of a `with` statement. `error` is None, or the exception that ends the block.
void leave(Entry& entry, pybind11::handle error);

// The same for a block in C++ that ended with the Python error that is set.
[[noreturn]] void leave_with_error(Entry& entry);

// Runs the function; returns false if it set a Python error.
template <class Run>
bool has_run(const Run& run) {
  HANDLE_TH_ERRORS
  run();
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

// The whole block: runs body(level) inside the layer. NOTE [Entering is one call] applies here too:
// the only bytecode that runs is what the body calls.
template <class Body>
pybind11::object within(std::shared_ptr<Layer> layer, const Body& body) {
  const auto shared = std::make_shared<Entry>(std::move(layer));
  Entry& entry = *shared;
  const int64_t level = entry.enter();
  pybind11::object result;
  if (!has_run([&] { result = body(level); })) {
    leave_with_error(entry);
  }
  leave(entry, pybind11::none());
  return result;
}

Randomness parse_randomness(pybind11::handle name);

} // namespace torchlayers
