// Anomaly mode (torch.autograd.detect_anomaly) in our reverse pass.
#pragma once

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/function.h>

namespace torchlayers {

inline bool is_anomaly_mode() {
  return torch::autograd::AnomalyMode::is_enabled();
}

// While it lives, a pass runs this node, which is the parent of nodes that are recorded meanwhile.
class Inducing {
 public:
  explicit Inducing(torch::autograd::Node& node);
  ~Inducing();
  Inducing(const Inducing&) = delete;
  Inducing& operator=(const Inducing&) = delete;

  // Makes the running node the parent of a node that has just been made.
  static void tell(torch::autograd::Node& made);

 private:
  torch::autograd::Node* outer_;
};

// Warns with the place where the node's operator was called, as the engine does when an error
// occurs.
void say_where_it_was_called(torch::autograd::Node& node);

// Throws if a node's gradients contain nan, and anomaly mode checks for that.
void check_for_nan(torch::autograd::Node& node, const torch::autograd::variable_list& gradients);

} // namespace torchlayers
