// Detects whether a dict may have changed.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <unordered_map>
#include <utility>

namespace torchlayers {

// NOTE [Dict versions]
// Globals, attributes, parameters and hooks are all stored in dicts. Up to Python 3.12 each dict
// has a version, which is unique across dicts and changes with every modification. From 3.13 on we
// register a watcher, which counts modifications. Values are compared only if the version has
// changed.

// Tells in a nanosecond whether a dict may have changed. NOTE [Dict versions].
class DictVersion {
 public:
  explicit DictVersion(PyObject* dict);
  DictVersion(const DictVersion&) = delete;
  DictVersion& operator=(const DictVersion&) = delete;
  DictVersion(DictVersion&& other) noexcept
      : dict_(std::exchange(other.dict_, nullptr)), changes_(other.changes_), seen_(other.seen_) {}
  DictVersion& operator=(DictVersion&&) = delete;
  ~DictVersion();

  bool is_seen() const {
    return seen_ == now();
  }
  // Marks the current content of the dict as seen.
  void see() {
    seen_ = now();
  }

 private:
  uint64_t now() const;

  PyObject* dict_; // borrowed
  const uint64_t* changes_ = nullptr;
  uint64_t seen_ = 0;
};

#if PY_VERSION_HEX < 0x030D0000

inline DictVersion::DictVersion(PyObject* dict) : dict_(dict) {}

inline DictVersion::~DictVersion() = default;

inline uint64_t DictVersion::now() const {
  C10_DIAGNOSTIC_PUSH_AND_IGNORED_IF_DEFINED("-Wdeprecated-declarations")
  return reinterpret_cast<PyDictObject*>(dict_)->ma_version_tag;
  C10_DIAGNOSTIC_POP()
}

#else

namespace watched {

struct Watched {
  uint64_t changes = 1;
  size_t versions = 0; // the number of versions that refer to it
};

// Never destroyed: dicts are also deallocated while the interpreter shuts down.
inline std::unordered_map<PyObject*, Watched>& all() {
  static auto* watched = new std::unordered_map<PyObject*, Watched>();
  return *watched;
}

inline int note_change(PyDict_WatchEvent, PyObject* dict, PyObject*, PyObject*) {
  if (const auto found = watched::all().find(dict); found != watched::all().end()) {
    found->second.changes += 1;
  }
  return 0;
}

// Negative if others have taken all available watchers.
inline int watcher() {
  static const int id = PyDict_AddWatcher(&note_change);
  return id;
}

} // namespace watched

inline DictVersion::DictVersion(PyObject* dict) : dict_(dict) {
  if (watched::watcher() < 0 || PyDict_Watch(watched::watcher(), dict) < 0) {
    PyErr_Clear();
    dict_ = nullptr;
    return;
  }
  watched::Watched& of_dict = watched::all()[dict];
  of_dict.versions += 1;
  changes_ = &of_dict.changes;
}

inline DictVersion::~DictVersion() {
  if (dict_ == nullptr) {
    return;
  }
  const auto found = watched::all().find(dict_);
  if (--found->second.versions == 0) {
    watched::all().erase(found);
    if (Py_IsInitialized() && PyDict_Unwatch(watched::watcher(), dict_) < 0) {
      PyErr_Clear();
    }
  }
}

// Without a watcher, returns a new version each time: see() has stored an earlier one, so is_seen
// returns false.
inline uint64_t DictVersion::now() const {
  static uint64_t unwatched = 1;
  return changes_ != nullptr ? *changes_ : ++unwatched;
}

#endif

} // namespace torchlayers
