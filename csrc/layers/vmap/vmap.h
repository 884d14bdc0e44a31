// vmap: batching rules, ours and torch's.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "core/layer.h"
#include "layers/random/keyed_draws.h"
#include "values/local_storages.h"

namespace torchlayers {

class BatchedCall;

// torch.func's three settings, and "keyed". NOTE [Drawing by a key].
enum class Randomness { Error, Same, Different, Keyed };

class VmapLayer final : public Layer {
 public:
  VmapLayer(c10::SymInt batch_size, Randomness randomness)
      : Layer(/*is_autograd=*/false),
        batch_size_(std::move(batch_size)),
        randomness_(randomness),
        made_(*this) {
    local_storages_ = &made_;
  }
  // The samples draw by this key; `first` is the position of the first in the whole batch.
  VmapLayer(c10::SymInt batch_size, const at::Tensor& key, int64_t first)
      : VmapLayer(std::move(batch_size), Randomness::Keyed) {
    draws_.emplace(key, Draws::Samples{batch_size_, first});
  }

  // The samples of another vmap, whose number is `again_of`, entered again for a Function.
  VmapLayer(c10::SymInt batch_size, Randomness randomness, uint64_t again_of)
      : VmapLayer(std::move(batch_size), randomness) {
    again_of_ = again_of;
  }

  const char* kind() const override {
    return "vmap";
  }
  std::map<std::string, c10::IValue> metadata() const override;
  void process(const Operator& op, Args& args) override;
  void send_down(const Operator& op, Args& args) override;
  bool follows(const at::Tensor& tensor) const override;
  // Above the layer its parts reach our rules; torch's rule would run all of it.
  bool decomposes(const Operator& op) const override {
    return (op.is_composite_under_vmap && op.batching_rule == nullptr) ||
           (draws_ && op.is_random && op.is_composite);
  }
  bool has_rule_for(const Operator& op) const override {
    return op.batching_rule != nullptr;
  }
  void bypassed(const Operator& op, const Args& args) const override;
  at::functorch::DynamicLayer mirrored(int64_t level) const override;
  const c10::SymInt* batch_size() const override {
    return &batch_size_;
  }
  Randomness randomness() const {
    return randomness_;
  }
  // Whether random operators draw different numbers for each sample.
  bool draws_for_each() const {
    return randomness_ == Randomness::Different || randomness_ == Randomness::Keyed;
  }
  // The number of the vmap that this one enters again; else 0. NOTE [Captured by a Function].
  uint64_t again_of() const {
    return again_of_;
  }
  void switch_on() override;
  void switch_off() override;
  // Describes a tensor from outside the function for error messages: "`seen`, which f captured".
  using Whose = std::function<std::string(const at::Tensor&)>;
  void ask(Whose whose) {
    whose_ = std::move(whose);
  }
  std::string whose(const at::Tensor& tensor) const {
    return whose_ ? whose_(tensor) : "a tensor that is not batched";
  }

  // Null if the samples don't draw by a key.
  Draws* draws() {
    return draws_ ? &*draws_ : nullptr;
  }

 private:
  // Processes an operator after batched tensors have replaced those that they represent.
  void run(const Operator& op, Args& args);
  void apply(const Operator& op, Args& args, BatchedCall& call);

  c10::SymInt batch_size_;
  Randomness randomness_;
  uint64_t again_of_ = 0;
  std::optional<Draws> draws_;
  LocalStorages made_;
  Whose whose_;
};

const char* randomness_name(Randomness randomness);

} // namespace torchlayers
