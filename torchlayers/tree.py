"""Functions to flatten, map and match pytrees: nested tuples, lists and dicts of tensors."""

from torchlayers.core.pytree import TreeSpec as TreeSpec
from torchlayers.core.pytree import broadcast as broadcast
from torchlayers.core.pytree import describe as describe
from torchlayers.core.pytree import flatten as flatten
from torchlayers.core.pytree import leaves as leaves
from torchlayers.core.pytree import map_leaves as map_leaves
from torchlayers.core.pytree import map_tensors as map_tensors
from torchlayers.core.pytree import paths as paths
from torchlayers.core.pytree import unflatten as unflatten
from torchlayers.core.ravel import ravel as ravel

__all__ = [
    "TreeSpec",
    "broadcast",
    "describe",
    "flatten",
    "leaves",
    "map_leaves",
    "map_tensors",
    "paths",
    "ravel",
    "unflatten",
]
