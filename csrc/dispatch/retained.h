// x.retain_grad()
#pragma once

namespace torchlayers {

// torch.func refuses to retain gradients while any transform is active. Its transforms could: the
// gradient is that of the tensor's own level, and is there when the pass of that level is over. The
// method asks no operator, so ours is put before torch's among what torch lets be replaced of a
// tensor's methods, and does the same as torch's in all else.
void allow_to_retain_gradients();

} // namespace torchlayers
