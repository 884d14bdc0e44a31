"""Typed (unboxed) kernels give bitwise the same as boxed ones."""

import itertools
import re
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchlayers as tl
from tests.rules.batching.samples import values
from tests.support.traced_steps import traced_steps

TYPED = tl._C.typed_operators()

ALONG = {  # operators on a matrix, along one of its dimensions
    "aten::sum.dim_IntList": [
        lambda x: x.sum(-1),
        lambda x: x.sum((0, 1), keepdim=True),
        lambda x: x.sum((), dtype=torch.float32),
    ],
    "aten::mean.dim": [lambda x: x.mean(0), lambda x: x.mean((-1, 0)), lambda x: x.mean(())],
    "aten::var.correction": [lambda x: x.var(1), lambda x: x.var((0, 1), correction=0.5)],
    "aten::std.correction": [lambda x: x.std(1), lambda x: x.std(None, keepdim=True)],
    "aten::amax": [lambda x: x.amax(-2), lambda x: x.amax(())],
    "aten::amin": [lambda x: x.amin((0, 1)), lambda x: x.amin((), keepdim=True)],
    "aten::logsumexp": [lambda x: x.logsumexp(1), lambda x: x.logsumexp((0, 1), keepdim=True)],
    "aten::flip": [lambda x: x.flip(0), lambda x: x.flip(-1, 0), lambda x: x.flip(())],
    "aten::softmax.int": [lambda x: x.softmax(0), lambda x: x.softmax(-1, dtype=torch.float32)],
    "aten::log_softmax.int": [lambda x: x.log_softmax(-1)],
    "aten::cumsum": [lambda x: x.cumsum(-2), lambda x: x.cumsum(1, dtype=torch.float32)],
    "aten::_softmax": [lambda x: torch._softmax(x, -1, False)],
    "aten::_log_softmax": [lambda x: torch._log_softmax(x, 0, False)],
    "aten::select.int": [lambda x: x[1], lambda x: x.select(-1, -1)],
    "aten::slice.Tensor": [lambda x: x[1:], lambda x: x[:, ::2], lambda x: x[0:0]],
}
COPY = "aten::copy_"
POINTWISE = [name for name in TYPED if name not in ALONG and name != COPY]


def operator(name: str) -> torch._ops.OpOverload:
    base, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


# Operators on integers, and the place of a mask.
OF_INTEGERS = re.compile("aten::(bitwise_|__|gcd|lcm)")
MASKS = {"aten::where": 0, "aten::masked_fill": 1}


def arguments(op: torch._ops.OpOverload, *shapes: tuple[int, ...]) -> list[object]:
    """Positional arguments: tensors whose shapes cycle through these, and numbers."""
    name = op._schema.name
    kinds = [str(each.type) for each in op._schema.arguments if not each.kwarg_only]
    whole = OF_INTEGERS.match(name) is not None
    args: list[object] = []
    for i, (kind, shape) in enumerate(zip(kinds, itertools.cycle(shapes), strict=False)):
        if kind != "Tensor":
            args.append(2 if whole else 1.5)
            continue
        tensor = values(*shape)
        if MASKS.get(name) == i:
            tensor = tensor > 0.5
        args.append((tensor * 9).long() if whole else tensor)
    return args


SHAPES = {
    "alike": [(2, 3)],
    "numbers": [()],
    "one lower": [(2, 3), (3,)],
    "one higher": [(3,), (2, 3)],
}


@pytest.mark.sweep
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("name", POINTWISE)
def test_typed_kernels_agree_with_boxed_ones(name: str, shapes: list[tuple[int, ...]]) -> None:
    op = operator(name)
    given = arguments(op, *shapes)
    places = [i for i, each in enumerate(given) if isinstance(each, Tensor)]
    for dims in itertools.product((None, 0, -1), repeat=len(places)):
        if set(dims) == {None}:
            continue
        batched = [
            each if dim is None else torch.stack([each, each + each], dim)
            for each, dim in zip((given[i] for i in places), dims, strict=True)
        ]

        def f(*tensors: Tensor) -> Tensor:
            filled = list(given)
            for place, tensor in zip(places, tensors, strict=True):
                filled[place] = tensor
            return op(*filled)

        assert_same_in_boxes(name, tl.vmap(f, in_dims=dims), *batched)


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0), (-1, 0), (0, -1)])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (1, 3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.complex64])
def test_copies(dims: tuple[int | None, int | None], shape: tuple[int, ...], dtype: torch.dtype):
    def f(x: Tensor, y: Tensor) -> Tensor:
        made = torch.zeros_like(x, dtype=dtype)
        made.copy_(y)
        made[1].copy_(y[-1] if len(shape) == 2 else y)
        return torch.zeros(2, 3).copy_(made.real)

    given = [
        each if dim is None else torch.stack([each, each + 1], dim)
        for each, dim in zip((values(2, 3), values(*shape)), dims, strict=True)
    ]
    assert_same_in_boxes(COPY, tl.vmap(f, in_dims=dims), *given)


def test_invalid_copies_are_rejected() -> None:
    for shape in ((2,), (1, 3), (2, 2, 3)):
        with pytest.raises(RuntimeError, match=r"self \(2, 3\)|shape|size"):
            tl.vmap(lambda y: torch.zeros(3).copy_(y))(values(2, *shape, 2))
    assert tl.current_stack() == ()


def assert_same_in_boxes(name: str, function: Callable[..., Tensor], *given: Tensor) -> None:
    found = function(*given)
    with traced_steps() as events:  # tracing uses the boxed kernels
        expected = function(*given)
    assert name in {event.op for event in events}
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ALONG)
def test_boxes_make_no_difference_along_dimensions(name: str) -> None:
    assert name in TYPED
    for function in ALONG[name]:
        for in_dim in (0, 1, -1):
            assert_same_in_boxes(name, tl.vmap(function, in_dims=in_dim), values(4, 4, 4))
        twice = tl.vmap(tl.vmap(function), in_dims=1)
        assert_same_in_boxes(name, twice, values(2, 3, 4, 4))
        assert_same_in_boxes(
            name, tl.vmap(lambda x, f=function: f(x * 1) * x.sum()), values(3, 2, 2)
        )
        by_rows = torch.stack([function(x) for x in values(3, 4, 4)])
        torch.testing.assert_close(tl.vmap(function)(values(3, 4, 4)), by_rows)


@pytest.mark.parametrize("call", [lambda x: x.sum(2), lambda x: x[3], lambda x: x.softmax(-3)])
def test_a_dimension_or_place_out_of_range(call: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(IndexError, match=r"out of (range|bounds)"):
        tl.vmap(call)(values(2, 3, 2))
    assert tl.current_stack() == ()


def test_a_view_is_written_through() -> None:
    def f(x: Tensor) -> Tensor:
        copy = x.clone()
        copy[1].mul_(2)
        copy[2:].zero_()
        return copy

    x = values(4, 3)
    torch.testing.assert_close(tl.vmap(f)(x), torch.stack([f(row) for row in x]))


def test_most_of_what_a_loop_calls_is_typed() -> None:
    for name in ("mul.Tensor", "add.Tensor", "div.Tensor", "sin", "tanh", "where.self"):
        assert f"aten::{name}" in TYPED
    assert len(POINTWISE) > 150


@pytest.mark.parametrize("nest", [tl.grad, lambda f: lambda x: tl.jvp(f, (x,), (x,))[1]])
def test_other_layers_receive_boxed_calls(
    nest: Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]],
) -> None:
    x = values(3)
    f = nest(lambda x: (x.sin() * x + x.exp()).sum())
    expected = torch.stack([f(row) for row in torch.stack([x, x + 1])])
    torch.testing.assert_close(tl.vmap(f)(torch.stack([x, x + 1])), expected)


def test_an_escaped_tensor_is_named() -> None:
    kept: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    tl.vmap(keep)(values(3))
    with pytest.raises(RuntimeError, match="outside that transform"):
        tl.vmap(lambda x: x * kept[0])(values(4))
    tl.grad(lambda x: keep(x).sum())(values(3))
    torch.testing.assert_close(  # a dead wrapper acts as its value
        tl.vmap(lambda x: x * kept[1])(values(4)), values(4)[:, None] * values(3)
    )
    assert tl.current_stack() == ()


def test_an_error_leaves_the_stack() -> None:
    with pytest.raises(RuntimeError, match="must match"):
        tl.vmap(lambda x: x * torch.ones(2))(values(4, 3))
    assert tl.current_stack() == ()
    assert (values(2) * 2).shape == (2,)


def test_each_thread_has_its_own_layers() -> None:
    x = values(6, 3)
    found: list[Tensor] = []

    def run(size: int) -> None:
        for _ in range(50):
            result = tl.vmap(lambda row: row * row + row.sin())(x[:size])
        found.append(result)

    threads = [threading.Thread(target=run, args=(size,)) for size in (2, 4, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(result) for result in found) == [2, 4, 6]
    for result in found:
        rows = x[: len(result)]
        torch.testing.assert_close(result, rows * rows + rows.sin())
