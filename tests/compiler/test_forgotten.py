"""A compiled function that is dropped leaves nothing behind that grows."""

import collections
import contextvars
import gc
import linecache

import torch
from torch import nn
from torch.fx import graph_module

import torchlayers as tl

# Objects of threading.local, which Python frees later.
NOT_COUNTED = {"ReferenceType", "builtin_function_or_method"}


def used_and_dropped(backend):
    weight = nn.Parameter(torch.ones(3))
    compiled = tl.compile(lambda x: (weight * x).sin().sum(), backend=backend)
    for _ in range(2):
        compiled(torch.ones(3)).backward()
    (slope,) = torch.autograd.grad(compiled(torch.ones(3)), weight, create_graph=True)
    torch.autograd.grad(slope.sum(), weight)


def left():
    gc.collect()
    counted = collections.Counter(type(each).__name__ for each in gc.get_objects())
    for name in NOT_COUNTED:
        counted.pop(name, None)
    counted["lines of source"] = len(linecache.cache)
    counted["graphs' code"] = len(graph_module._loader.eval_cache)
    counted["variables of the context"] = len(contextvars.copy_context())
    return counted


def test_dropped_functions_leave_nothing_behind():
    for _ in range(3):
        used_and_dropped("replay")
    before = left()
    for _ in range(8):
        used_and_dropped("replay")
    grown = {name: count for name, count in (left() - before).items() if count >= 8}
    assert not grown
