// x.new(...) and x.new_tensor(...) of batched tensors.
#pragma once

namespace torchlayers {

// Puts ours before torch's, for good, in the two methods of torch.Tensor. NOTE [Escaped].
void stand_before_new_tensors();

} // namespace torchlayers
