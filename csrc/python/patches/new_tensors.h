// x.new(...) and x.new_tensor(...) of batched tensors.
#pragma once

namespace torchlayers {

// Registers our versions of the two methods of torch.Tensor as replacements. NOTE [Escaped].
void patch_new_tensors();

} // namespace torchlayers
