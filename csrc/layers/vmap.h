// vmap: batching rules, ours and torch's.
#pragma once

#include <optional>
#include <utility>

#include "core/layer.h"
#include "layers/draws.h"

namespace torchlayers {

// torch.func's three, and "keyed". NOTE [Drawing by a key].
enum class Randomness { Error, Same, Different, Keyed };

class VmapLayer final : public Layer {
 public:
  VmapLayer(c10::SymInt batch_size, Randomness randomness)
      : Layer(/*is_autograd=*/false), batch_size_(std::move(batch_size)), randomness_(randomness) {}
  // The samples draw by this key; the first of them is at this place in the whole batch.
  VmapLayer(c10::SymInt batch_size, const at::Tensor& key, int64_t first)
      : VmapLayer(std::move(batch_size), Randomness::Keyed) {
    draws_.emplace(key, Draws::Samples{batch_size_, first});
  }

  const char* kind() const override {
    return "vmap";
  }
  std::map<std::string, c10::IValue> metadata() const override;
  void process(const Operator& op, Args& args) override;
  void send_down(const Operator& op, Args& args) override;
  bool follows(const at::Tensor& tensor) const override;
  // Above the layer its parts meet our rules; torch's rule would see them through to the end.
  bool decomposes(const Operator& op) const override {
    return (op.is_composite_under_vmap && op.batching_rule == nullptr) ||
           (draws_ && op.draws && op.is_composite);
  }
  bool has_rule_for(const Operator& op) const override {
    return op.batching_rule != nullptr;
  }
  void bypassed(const Operator& op, const Args& args) const override;
  at::functorch::DynamicLayer mirrored(int64_t level) const override;
  const c10::SymInt* batch_size() const override {
    return &batch_size_;
  }

  // Null where the samples don't draw by a key.
  Draws* draws() {
    return draws_ ? &*draws_ : nullptr;
  }

 private:
  c10::SymInt batch_size_;
  Randomness randomness_;
  std::optional<Draws> draws_;
};

const char* randomness_name(Randomness randomness);

} // namespace torchlayers
