// The two dispatch keys that torchlayers uses, and the keysets made of them.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace torchlayers {

using c10::DispatchKey;
using c10::DispatchKeySet;

// NOTE [The two keys]
// An operator meets the front key first and the back key last, so a layer's own
// keys lie between them. Both keys have to be ones that torch leaves without a
// fallback: the dispatcher keeps one fallback a key.
//   front: above torch.func's front and above PythonTLSSnapshot, so that a layer
//          sees the operator before any dispatch mode does.
//   back:  below ADInplaceOrView, and no backend key (those get Composite
//          kernels filled in ahead of a fallback).
// The choice is made here and nowhere else. `claim_keys` (dispatch/register_kernels.cpp) checks
// that both are free before anything is registered.
inline constexpr DispatchKey kFront = DispatchKey::TESTING_ONLY_GenericMode;
inline constexpr DispatchKey kBack = DispatchKey::Fake;
inline constexpr DispatchKeySet kOurKeys({kFront, kBack});

// The key of symbolic values (graph/gradients/symbolic.h), which no layer meets: a key of tensors
// above all others that tensors have, for which composite operators are not decomposed.
inline constexpr DispatchKey kSymbolic = DispatchKey::TESTING_ONLY_GenericWrapper;

inline constexpr DispatchKey kTorchFuncFront = DispatchKey::FuncTorchDynamicLayerFrontMode;
inline constexpr DispatchKey kTorchFuncBack = DispatchKey::FuncTorchDynamicLayerBackMode;
inline constexpr DispatchKeySet kTorchFuncKeys({kTorchFuncFront, kTorchFuncBack});

inline const DispatchKeySet kAutocastKeys = c10::autocast_dispatch_keyset;

// Every key from the front down to, and without, the back. torch.func's back is left
// out: see NOTE [Bypassing the stack].
inline const DispatchKeySet kBetween = ((DispatchKeySet(DispatchKeySet::FULL_AFTER, kFront) -
                                         DispatchKeySet(DispatchKeySet::FULL_AFTER, kBack)) |
                                        DispatchKeySet(kFront)) -
                                       DispatchKeySet({kBack, kTorchFuncBack});

// The keys that each kind of layer lets through while it processes an operator.
inline const DispatchKeySet kAutogradLayerKeys = c10::autograd_dispatch_keyset_with_ADInplaceOrView;
inline constexpr DispatchKeySet kVmapLayerKeys(
    {DispatchKey::FuncTorchBatched,
     DispatchKey::BatchedNestedTensor,
     DispatchKey::FuncTorchVmapMode});

inline c10::impl::PODLocalDispatchKeySet& thread_keys() {
  return c10::impl::raw_local_dispatch_key_set;
}

// NOTE [Bypassing the stack]
// Where torch calls an operator past every transform, it excludes torch.func's keys: torch.tensor()
// while it makes the tensor to fill, and functionalization's dry run on meta tensors. We never
// exclude those keys where this is checked, so if one is excluded, our layers have to be bypassed
// as well.
inline bool is_bypassed(c10::DispatchKey torch_funcs_key) {
  return thread_keys().excluded().has(torch_funcs_key);
}

// Autocast switches a device on by no longer excluding its key.
inline bool autocast_is_on() {
  return (kAutocastKeys - thread_keys().excluded()).highestFunctionalityKey() !=
         DispatchKey::Undefined;
}

} // namespace torchlayers
