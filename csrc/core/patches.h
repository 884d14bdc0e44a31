// What keeps the replacements in torch in place.
#pragma once

#include "core/callbacks.h"

namespace torchlayers {

// NOTE [Patches]
// Some of what a function does inside a transform never reaches the dispatcher as an operator:
// y[i], x.requires_grad_(), x.register_hook(...), copy.deepcopy(x), torch.autograd.grad. For these,
// functions of torch are replaced, by pointers in C and the code of Python functions, while at
// least one Patched lives in the process; an open Entry has one. Each replacement asks first
// whether its thread has a layer. No attribute of a class or module changes: that would empty
// Python's caches of attributes at each call of a transform, and Python 3.13 gives up caching those
// of a class that has changed a thousand times. torchlayers/patches/__init__.py lists them all.
class Patched {
 public:
  Patched() {
    callbacks.put_patches_in();
  }
  ~Patched() {
    callbacks.take_patches_out();
  }
  Patched(const Patched&) = delete;
  Patched& operator=(const Patched&) = delete;
};

} // namespace torchlayers
