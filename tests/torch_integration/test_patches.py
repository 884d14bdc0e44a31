"""Importing the package changes in torch exactly what docs/importing.md lists."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Runs in a separate process: compares attributes of torch's modules and classes before and after.
PROGRAM = """
import json
import sys
import types

import torch
import torch._higher_order_ops
import torch.distributed.tensor
import torch.export
import torch.fx.experimental.proxy_tensor
import torch.nn.attention.flex_attention
import torch.utils.checkpoint


def of_torch(name):
    return name.partition(".")[0] in ("torch", "functorch")


def attributes():
    found = {}
    for module in [sys.modules[name] for name in sorted(sys.modules) if of_torch(name)]:
        classes = [each for each in vars(module).values() if isinstance(each, type)]
        for owner in [module, *classes]:
            if owner is module or of_torch(owner.__module__):
                name = owner.__name__ if owner is module else owner.__qualname__
                found |= {f"{name}.{key}": value for key, value in vars(owner).items()}
    return found


before = attributes()
import torchlayers

after = attributes()
changed = [
    name
    for name, value in before.items()
    if name in after and after[name] is not value and callable(getattr(value, "__func__", value))
]
print(json.dumps([changed, [name for name in sys.argv[1:] if name in before]]))
"""
CHANGED = {
    "BackwardHook._apply_on_tensors",
    "CheckpointFunction.forward",
    "Module._get_backward_hooks",
    "Parameter.__deepcopy__",
    "ScriptMethod.__call__",
    "Tensor.__deepcopy__",
    "Tensor.__reduce_ex__",
    "Tensor.register_hook",
    "Tensor.register_post_accumulate_grad_hook",
    "_CheckpointFrame.__init__",
    "torch._higher_order_ops.utils._hop_compile_and_call",
    "torch._tensor_str._functorch_wrapper_str_intern",
    "torch._vmap_internals._vmap",
    "torch.autograd._engine_run_backward",
    "torch.autograd.functional._grad_preprocess",
    "torch.autograd.functional._vmap",
    "torch.jit.ScriptFunction.__call__",
    "torch.nn.attention.flex_attention._validate_device",
    "torch.nn.attention.flex_attention.setup_compilation_env",
}


def test_importing_changes_what_the_page_says():
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, *CHANGED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    changed, there = json.loads(ran.stdout)  # an older torch lacks some of them
    assert {*changed} == {*there}
    page = (ROOT / "docs" / "importing.md").read_text()
    for name in CHANGED:
        assert re.search(rf"\b{name.rpartition('.')[2]}\b", page), name
