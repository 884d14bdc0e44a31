// Errors under vmap, in terms of the user's function.
#pragma once

#include "core/errors.h"
#include "layers/vmap/vmap.h"

namespace torchlayers {

// NOTE [An error under vmap]
// The operators that a vmap runs count the batch: "size mismatch, got input (8), mat (8x3)". So an
// error that one of them raises is caught where the layer processes the operator, and raised again:
// with advice if it is a known error, and otherwise with the shapes of one sample, which the user's
// function sees. The text is still torch's own: the operator is called on zeros in a sample's
// shapes, below all layers, and if it rejects those too, that message is used. If not, the shapes
// are not to blame, and its message for the batch is quoted. The error keeps its type, but a
// plain one becomes a BatchedOperatorError. Nested vmaps
// each raise it again with the shapes that they see; the innermost, which is the user's, comes
// last.

// Raises the error that the operator raised under this layer again. Returns if there is nothing to
// add: to an error of ours, or one about memory or a device. `args` are those that the layer was
// passed.
void say_again(
    const c10::Error& error, const Operator& op, const Args& args, const VmapLayer& layer);
void say_again(
    const LayerError& error, const Operator& op, const Args& args, const VmapLayer& layer);

// Throws: the tensor comes from outside the function, and the operator would write a value per
// sample to it.
[[noreturn]] void refuse_to_write(
    const Operator& op, const at::Tensor& tensor, const VmapLayer& layer);

// Throws: randomness is 'error', and the operator draws random numbers.
[[noreturn]] void refuse_to_draw(const Operator& op, const VmapLayer& layer);

// Throws if the operator makes one Python number of a tensor that this layer has batched.
void refuse_to_read_number(const Operator& op, const Args& args, const VmapLayer& layer);

} // namespace torchlayers
