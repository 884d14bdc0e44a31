// torch.sparse_coo_tensor of values of a transform.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchlayers {

// Registers a replacement, in which torch.sparse_coo_tensor asks
// torchlayers/transforms/sparse/coo_entries.py first; `m` gets torch's own. The function stays the
// same object, by which TorchScript and Dynamo know it.
void patch_coo_tensor(pybind11::module_& m);

} // namespace torchlayers
