#include "reverse/anomaly.h"

#include <utility>

#include "core/aten_functions.h"
#include "core/callbacks.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

thread_local Node* inducing = nullptr;

} // namespace

Inducing::Inducing(Node& node) : outer_(std::exchange(inducing, &node)) {}

Inducing::~Inducing() {
  inducing = outer_;
}

void Inducing::tell(Node& made) {
  if (inducing != nullptr) {
    made.metadata()->assign_parent(inducing->getptr());
  }
}

void say_where_it_was_called(Node& node) {
  node.metadata()->print_stack(node.name());
}

void check_for_nan(Node& node, const variable_list& gradients) {
  if (!torch::autograd::AnomalyMode::should_check_nan()) {
    return;
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) {
      continue;
    }
    const at::Tensor& numbers = holder_of(gradients[i]); // of all samples
    if (!at::_is_any_true(at::isnan(numbers)).item<bool>()) {
      continue;
    }
    const std::string line = callbacks.line_of_node(node);
    TORCH_CHECK(
        false,
        "Function '",
        node.name(),
        "' returned nan values in its ",
        i,
        "th output.",
        line.empty() ? "" : " It was recorded in ",
        line,
        line.empty() ? "" : ".");
  }
}

} // namespace torchlayers
