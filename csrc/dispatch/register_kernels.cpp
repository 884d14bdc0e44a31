// Claims the two keys: checks that they are free, and registers on them.
#include <torch/library.h>

#include <sstream>

#include "core/keys.h"
#include "dispatch/decompose.h"
#include "dispatch/fallbacks.h"
#include "dispatch/set_data.h"
#include "dispatch/tensor_methods.h"
#include "dispatch/unboxed/unboxed.h"

namespace torchlayers {
namespace {

// The lines of an operator's dispatch table about this key.
std::string lines_about(const c10::OperatorHandle& op, DispatchKey key) {
  std::istringstream table(op.dumpComputedTable());
  std::ostringstream found;
  const std::string prefix = std::string(c10::toString(key)) + ":";
  for (std::string line; std::getline(table, line);) {
    if (line.compare(0, prefix.size(), prefix) == 0) {
      found << "\n  " << op.operator_name() << " " << line;
    }
  }
  return found.str();
}

void check_free(DispatchKey key) {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::string owners;
  if (dispatcher.hasBackendFallbackForDispatchKey(key)) {
    owners = lines_about(dispatcher.findSchemaOrThrow("aten::mul", "Tensor"), key);
  } else {
    const auto taken = dispatcher.getRegistrationsForDispatchKey(key);
    if (!taken.empty()) {
      owners = lines_about(
          dispatcher.findSchemaOrThrow(taken[0].name.c_str(), taken[0].overload_name.c_str()), key);
    }
    if (taken.size() > 1) {
      owners += "\n  and " + std::to_string(taken.size() - 1) + " more";
    }
  }
  TORCH_CHECK(
      owners.empty(),
      "torchlayers needs the dispatch key ",
      key,
      " for itself, and another package has registered on it:",
      owners,
      "\nImport only one of the two in a process.");
}

} // namespace

void claim_keys() {
  check_free(kFront);
  check_free(kBack);
  // These live as long as the process: Python never unloads an extension.
  static auto* on_front = new torch::Library(torch::Library::IMPL, "_", kFront, __FILE__, __LINE__);
  on_front->fallback(torch::CppFunction::makeFromBoxedFunction<&front>());
  static auto* on_back = new torch::Library(torch::Library::IMPL, "_", kBack, __FILE__, __LINE__);
  on_back->fallback(torch::CppFunction::makeFromBoxedFunction<&back>());
  static auto* for_some =
      new torch::Library(torch::Library::IMPL, "aten", kFront, __FILE__, __LINE__);
  register_data(*for_some);
  register_lists(*for_some);
  register_taken_apart(*for_some);
  register_recurrent(*for_some);
  register_typed();
}

} // namespace torchlayers
