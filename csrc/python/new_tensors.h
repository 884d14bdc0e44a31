// x.new(...) and x.new_tensor(...) of batched tensors.
#pragma once

namespace torchlayers {

// Installs our versions of the two methods of torch.Tensor, permanently. NOTE [Escaped].
void stand_before_new_tensors();

} // namespace torchlayers
