// Anomaly mode (torch.autograd.detect_anomaly) in a pass of ours.
#pragma once

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/function.h>

namespace torchlayers {

inline bool is_anomaly_mode() {
  return torch::autograd::AnomalyMode::is_enabled();
}

// While it lives, a pass runs this node: what is recorded meanwhile was induced by it.
class Inducing {
 public:
  explicit Inducing(torch::autograd::Node& node);
  ~Inducing();
  Inducing(const Inducing&) = delete;
  Inducing& operator=(const Inducing&) = delete;

  // Lets a node that has just been made know who induced it.
  static void tell(torch::autograd::Node& made);

 private:
  torch::autograd::Node* outer_;
};

// Warns where the operator was called that the node is of, as the engine does when an error is on
// its way.
void say_where_it_was_called(torch::autograd::Node& node);

// Throws where nan is among a node's gradients, if anomaly mode asks for that.
void check_for_nan(torch::autograd::Node& node, const torch::autograd::variable_list& gradients);

} // namespace torchlayers
