// torch.sparse_coo_tensor of values of a transform.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchlayers {

// Makes torch.sparse_coo_tensor ask torchlayers/transforms/sparse/coo_entries.py first while a
// layer is active, permanently; `m` gets torch's own. The function stays the same object, by which
// TorchScript and Dynamo know it.
void stand_before_coo_tensor(pybind11::module_& m);

} // namespace torchlayers
