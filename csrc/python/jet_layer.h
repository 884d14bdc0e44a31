// The layer of jet, whose tensors carry coefficients of power series.
#pragma once

#include <string>
#include <utility>

#include "layers/taylor.h"
#include "python/python_layer.h"

namespace torchlayers {

// Keeps coefficients in its wrappers, and computes in C++ with them what layers/taylor.h can; only
// other operators enter Python.
class JetLayer final : public PythonLayer {
 public:
  JetLayer(const pybind11::object& layer, std::string name, size_t order)
      : PythonLayer(layer, std::move(name), /*sees_all=*/false, /*lifts_plainly=*/true),
        order_(order) {}

 protected:
  bool process_below(const Operator& op, Args& args) override;
  at::Tensor new_wrapper(const at::Tensor& value, const pybind11::object& parts) const override;
  pybind11::object parts_in_wrapper(const at::Tensor& wrapper) const override;

 private:
  bool push(SeriesStep step, const Operator& op, Args& args) const;
  at::Tensor wrap_series(const at::Tensor& value, Coefficients series) const;

  const size_t order_;
};

} // namespace torchlayers
