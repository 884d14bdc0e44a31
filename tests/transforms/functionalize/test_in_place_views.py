"""In-place operators that change how a tensor views its memory (t_, as_strided_): results, sizes,
strides and derivatives are as without functionalize."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.func
from torch import Tensor
from torch.testing import assert_close

import torchlayers as tl
from tests.transforms.functionalize import removes

Function = Callable[..., Any]

X = torch.linspace(0.1, 1.2, 12, dtype=torch.float64).reshape(3, 4)
SAMPLES = torch.stack([X, X.cos()])

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda x: x,
    "columns": lambda x: x[:, 1:],
    "rows": lambda x: x[1:],
    "transpose": lambda x: x.t(),
    "diagonal": lambda x: x.diagonal()[None],
    "window": lambda x: x.unfold(1, 2, 1)[:, 0],
}
CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "t_": lambda y: y.t_(),
    "transpose_": lambda y: y.transpose_(0, -1),
    "swapdims_": lambda y: y.swapdims_(0, 1),
    "unsqueeze_": lambda y: y.unsqueeze_(0),
    "squeeze_": lambda y: y.unsqueeze_(-1).squeeze_(),
    "squeeze_ a dimension": lambda y: y.unsqueeze_(1).squeeze_(1),
    "squeeze_ dimensions": lambda y: torch.ops.aten.squeeze_.dims(y.unsqueeze_(1), [1]),
    "as_strided_": lambda y: y.as_strided_((1, 2), y.stride()),
    "as_strided_ at an offset": lambda y: y.as_strided_((2,), (y.stride(1),), y.storage_offset()),
    "resize_": lambda y: y.resize_(1, 2),
    "resize_as_": lambda y: y.resize_as_(torch.ones(2)),
}
# To the view, or to the memory that it shows.
WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "nothing": lambda x, y: None,
    "memory": lambda x, y: x.mul_(3),
    "view": lambda x, y: y.mul_(2),
}


def changed(view: str, change: str, before: str, after: str) -> Function:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        memory = x * 1
        y = VIEWS[view](memory)
        WRITES[before](memory, y)
        CHANGES[change](y)
        WRITES[after](memory, y)
        return memory * 1, y

    return f


def squares(f: Function) -> Function:
    return lambda x: sum((y * y).sum() for y in f(x))


# Of writes, before and after the change.
PAIRS = list(itertools.product(WRITES, repeat=2))
QUICK = [("nothing", "nothing"), ("memory", "view"), ("view", "memory")]

# Transforms around functionalize and inside it.
NESTS: dict[str, Callable[[Function, Function], Any]] = {
    "alone": lambda t, f: t(f)(X),
    "grad of it": lambda t, f: tl.grad(t(squares(f)))(X),
    "of grad": lambda t, f: t(tl.grad(squares(f)))(X),
    "jvp of it": lambda t, f: tl.jvp(t(f), (X,), (X.cos(),))[1],
    "of jvp": lambda t, f: t(lambda x: tl.jvp(f, (x,), (x.cos(),))[1])(X),
    "jvp of it of grad": lambda t, f: tl.jvp(t(tl.grad(squares(f))), (X,), (X.cos(),))[1],
    "vmap of it": lambda t, f: tl.vmap(t(f))(SAMPLES),
    "of vmap": lambda t, f: t(tl.vmap(f))(SAMPLES),
    "torch.func.grad of it": lambda t, f: torch.func.grad(t(squares(f)))(X),
    "compiled": lambda t, f: tl.compile(t(f), backend="replay")(X),
}
# resize_ of what is differentiated is an error, and of samples that are not contiguous.
RESIZED = {"alone", "compiled"}
CASES = [
    (view, change, nest)
    for view, change, nest in itertools.product(VIEWS, CHANGES, NESTS)
    if not change.startswith("resize") or nest in RESIZED
]


@pytest.mark.sweep(one_in=8)
@removes
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(("view", "change", "nest"), CASES)
def test_results_are_as_without_functionalize(
    view: str, change: str, nest: str, remove: Any, full: bool
) -> None:
    for before, after in PAIRS if full else QUICK:
        f = changed(view, change, before, after)
        found = NESTS[nest](functools.partial(tl.functionalize, remove=remove), f)
        assert_close(found, NESTS[nest](lambda f: f, f))


@removes
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("view", VIEWS)
def test_strides_are_as_without_functionalize(view: str, change: str, remove: Any) -> None:
    seen = []

    def f(x: Tensor) -> None:
        for before, after in PAIRS:
            y = changed(view, change, before, after)(x)[1]
            seen.append((y.shape, y.stride(), y.storage_offset(), y.is_contiguous()))

    f(X)
    expected = seen.copy()
    seen.clear()
    tl.functionalize(f, remove=remove)(X)
    assert seen == expected


def _by_real_parts(x):
    y = torch.view_as_complex((x * 2).view(2, 2))
    torch.view_as_real(y)[:, 0].mul_(x[:2])
    y.imag.add_(x[2:] ** 2)
    return torch.view_as_real(y).reshape(-1)


def _by_complex_numbers(x):
    y = (x * 2).view(2, 2)
    torch.view_as_complex(y).conj().mul_(1j)
    torch.view_as_real(torch.view_as_complex(y)).mul_(x.view(2, 2))
    return y.reshape(-1)


def _by_bytes(x):
    y = (x * 2).view(2, 2)
    y.view(torch.int64).view(torch.float64)[0].mul_(x[:2])
    return y.reshape(-1)


@pytest.mark.parametrize("f", [_by_real_parts, _by_complex_numbers, _by_bytes])
def test_gradients_inside_of_writes_to_memory_seen_as_another_dtype(f):
    x = torch.tensor([0.7, 0.4, 0.9, 0.5], dtype=torch.float64)
    gradient = tl.grad(lambda x: f(x).sin().sum())
    expected = gradient(x)
    torch.testing.assert_close(tl.functionalize(gradient)(x), expected)
    torch.testing.assert_close(tl.functionalize(tl.vmap(gradient))(x[None])[0], expected)
    value, (first,) = tl.jet(gradient, (x,), ((x,),))
    torch.testing.assert_close(value, expected)
    if f is not _by_bytes:  # integers have no derivative, so the gradient's own is not defined
        torch.testing.assert_close(first, tl.jvp(gradient, (x,), (x,))[1])
