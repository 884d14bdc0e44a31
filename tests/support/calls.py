"""Shared helpers: running a call, comparing with torch.func, checking ambient state.

A call takes the library, torchlayers or torch.func, and does the same with either.
"""

import collections
import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.func
from torch import Tensor
from torch.utils import _pytree as pytree

import torchlayers
from tests.support.traced_steps import traced_steps

Call = Callable[[ModuleType], Any]


class Tied(torch.nn.Module):
    """Two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.one(x))


def agree(call: Call) -> Any:
    """Asserts that the call gives bitwise the same with torchlayers and with torch.func.

    Where one of our rules was applied, values agree up to rounding, and strides may differ. Both
    start from the same random state. Returns torchlayers' result.
    """
    theirs = run(call, torch.func)
    before = ambient()
    with traced_steps() as events:
        ours = run(call, torchlayers)
    assert torchlayers.current_stack() == ()
    assert ambient() == before
    assert_same(ours, theirs, rounded=any(event.step == "rule" for event in events))
    return ours


def run(call: Call, library: ModuleType) -> Any:
    torch.manual_seed(0)
    return call(library)


def assert_same(ours: Any, theirs: Any, rounded: bool = False) -> None:
    """Asserts equal structure and, for each leaf, equal values, dtype, strides and flags."""
    exactly = {} if rounded else {"rtol": 0, "atol": 0, "check_stride": True}
    our_leaves, our_spec = pytree.tree_flatten(ours)
    their_leaves, their_spec = pytree.tree_flatten(theirs)
    assert our_spec == their_spec
    for our, their in zip(our_leaves, their_leaves, strict=True):
        if not isinstance(their, Tensor):
            assert our == their
            continue
        torch.testing.assert_close(our, their, equal_nan=True, **exactly)
        assert type(our) is type(their)
        assert our.requires_grad == their.requires_grad
        assert our.is_inference() == their.is_inference()


def ambient() -> tuple[Any, ...]:
    """The ambient state that a transform may change and has to restore."""
    keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return (
        repr(torchlayers.current_stack()),
        [key.raw_repr() for key in keys],
        torch.is_grad_enabled(),
        torch._C._is_fwd_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.autograd.forward_ad._current_level,
        torch._functorch.eager_transforms.JVP_NESTING,
        torch._C._autograd._saved_tensors_hooks_is_enabled(),
        torch._C._functorch.peek_interpreter_stack() is None,
    )


def level_of(tensor: Tensor) -> int:
    """The level of the tensor's wrapper: -1 for none, -2 for a level that has ended."""
    return torch._C._functorch.maybe_get_level(tensor)


def is_dead(tensor: Tensor) -> bool:
    return level_of(tensor) == -2


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class State:
    x: Any
    y: Any


pytree.register_dataclass(State)

STRUCTURES = {
    "tuple": lambda x, y: (x, y),
    "list": lambda x, y: [x, y],
    "dict": lambda x, y: {"x": x, "y": y},
    "ordered dict": lambda x, y: collections.OrderedDict(y=y, x=x),
    "named tuple": Point,
    "dataclass": State,
    "nested": lambda x, y: {"a": [x, (y,)], "b": {}, "c": Point(x, [y])},
    "with empty ones": lambda x, y: (x, [], (y,), {}),
}
# Parametrizes a test by `pack`, with each way to pack two values into a structure.
structures = pytest.mark.parametrize("pack", STRUCTURES.values(), ids=STRUCTURES.keys())


def by_vjp(g):
    """Returns x -> the cotangent of x by g for a cotangent of ones."""

    def pulled(x):
        output, vjp_fn = torchlayers.vjp(g, x)
        return vjp_fn(torch.ones_like(output))[0]

    return pulled
