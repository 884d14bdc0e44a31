// What goes wrong under vmap, said in terms of the user's function.
#pragma once

#include "layers/vmap.h"

namespace torchlayers {

// NOTE [An error under vmap]
// The operators that a vmap runs count the batch: "size mismatch, got input (8), mat (8x3)". So an
// error that one of them raises is caught where the layer processes the operator, and said again:
// with advice where it is one that we know, and else in the shapes of one sample, which is what
// the user's function sees. The words for those are torch's own: the operator is called on zeros
// in a sample's shapes, below all layers, and if it refuses those too, that is what it says. Else
// the shapes are not to blame, and its words for the batch are quoted. The error keeps its type.
// Where vmaps nest, each says it again in the shapes that it sees, and the innermost, which is the
// user's, has the last word.

// Throws the error that the operator raised under this layer again. Returns where there is nothing
// to add: to an error of ours, or one about memory or a device. `args` are those that the layer was
// given.
void say_again(
    const c10::Error& error, const Operator& op, const Args& args, const VmapLayer& layer);

// Throws: the tensor comes from outside the function, and the operator would write to it what it
// has of each sample.
[[noreturn]] void refuse_to_write(
    const Operator& op, const at::Tensor& tensor, const VmapLayer& layer);

// Throws: randomness is 'error', and the operator draws random numbers.
[[noreturn]] void refuse_to_draw(const Operator& op, const VmapLayer& layer);

// Throws if the operator makes one Python number of a tensor that this layer batched.
void refuse_to_read_number(const Operator& op, const Args& args, const VmapLayer& layer);

} // namespace torchlayers
