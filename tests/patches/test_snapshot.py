"""torch is the same before the import of torchlayers, after it, and after every use.

One process takes the snapshots for all tests.
"""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from torchlayers.patches import PATCHES, VALIDATE_DEVICE

ROOT = Path(__file__).parents[2]
# Replaced in C, or by hand.
IN_C = {
    "torch.Tensor (slots)",
    "torch._C.TensorBase.__getitem__",
    "torch._C.TensorBase.__setitem__",
    "torch._C.TensorBase.__delitem__",
    "torch._C.TensorBase.new",
    "torch._C.TensorBase.new_tensor",
    "torch._C.TensorBase.requires_grad",
    "torch._C.TensorBase.requires_grad_",
    "torch.jit.torch.jit.ScriptFunction.__call__",
    "torch.ScriptMethod.__call__",
    "torch.nn.modules.module.Module._wrapped_call_impl",
    "torch.nn.modules.module.Module.__getattr__",
    "torch.sparse_coo_tensor",
}


@cache
def snapshots():
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.patches.snapshot"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout)


@pytest.mark.parametrize("moment", ["import", "transforms", "exceptions", "other functions"])
def test_torch_is_as_before_after(moment):
    assert snapshots()["after"][moment] == []


@pytest.mark.parametrize("name", [*PATCHES, *sorted(IN_C)])
def test_the_replacements_are_in_while_a_layer_is_active(name):
    """So the test above can see them."""
    seen = snapshots()["in a layer"]
    assert any(each.endswith(".".join(name.split(".")[-2:])) for each in seen)


@pytest.mark.parametrize("name", [*PATCHES, VALIDATE_DEVICE])
def test_the_page_lists_them(name):
    page = (ROOT / "docs" / "importing.md").read_text()
    assert re.search(rf"\b{name.rpartition('.')[2]}\b", page)
