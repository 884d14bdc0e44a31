// The replacements in torch, and putting them in and taking them out. NOTE [Patches].
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <functional>

namespace torchlayers {

// Called with true to put a replacement in, and with false to take it out. It runs no Python code.
using Switch = std::function<void(bool is_in)>;

void add_patch(Switch set);

// A pointer of torch, and what replaces it, unless another library has replaced it since.
struct PointerPatch {
  void** place;
  void* torchs;
  void* ours;

  void set(bool is_in) const {
    if (*place == (is_in ? torchs : ours)) {
      *place = is_in ? ours : torchs;
    }
  }
};

void add_pointer_patch(const PointerPatch& patch);

// Returns torch's.
template <class Pointer>
Pointer add_pointer_patch(Pointer& place, Pointer ours) {
  const Pointer torchs = place;
  void* both[] = {reinterpret_cast<void*>(torchs), reinterpret_cast<void*>(ours)};
  add_pointer_patch({reinterpret_cast<void**>(&place), both[0], both[1]});
  return torchs;
}

// Whether add_attributes has added some that are still there.
bool any_attribute_added();

// add_code_patch(function, code): a Python function runs this code instead of its own.
// add_attributes(class, attributes): until the replacements are taken out.
// watch_imports(pending, run_ready, finder): while there are replacements, the finder is on
// sys.meta_path; run_ready() is called before if a module in the dict has been imported.
// forget_other_threads(): for a process that was forked.
void bind_patches(pybind11::module_& m);

} // namespace torchlayers
