// x.retain_grad() and x.data
#pragma once

namespace torchlayers {

// torch.func does not allow gradients to be retained while any transform is active, although they
// could be: the gradient is that of the tensor's own level, and is complete when that level's pass
// is over. The method calls no operator, so ours is put among the tensor methods that torch lets be
// replaced, and passes everything else on to torch's. NOTE [Patches].
void use_our_tensor_methods(bool is_in);

} // namespace torchlayers
