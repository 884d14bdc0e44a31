"""The C++ extension, in files by what its names are for: the extension itself has no submodules.

See csrc/README.md."""

# ruff: noqa: F403

from torchlayers._C.calls import *
from torchlayers._C.compiled import *
from torchlayers._C.graph import *
from torchlayers._C.hooks import *
from torchlayers._C.layers import *
from torchlayers._C.operators import *
from torchlayers._C.process import *
from torchlayers._C.random import *
from torchlayers._C.sparse import *
from torchlayers._C.values import *
