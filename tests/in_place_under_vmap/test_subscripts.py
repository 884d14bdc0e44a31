"""y[i] and y[i] = v: a fast path where nothing observes it, torch's binding elsewhere, same
results."""

import operator
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import torchlayers as tl
from tests.in_place_under_vmap.reference import loop, same
from tests.support.traced_steps import traced_steps

INDICES: dict[str, Any] = {
    "first": 0,
    "last": -1,
    "a row's": (1, 2),
    "a column": (slice(None), 1),
    "an ellipsis": (..., 2),
    "an ellipsis in the middle": (1, ..., 0),
    "all": ...,
    "nothing": (),
    "None": None,
    "None in the middle": (slice(0, 2), None, 1),
    "a slice": slice(1, 3),
    "a slice from behind": slice(-2, None),
    "steps": (slice(None, None, 2), slice(0, 3, 2)),
    "an empty slice": slice(2, 2),
    "a slice past the end": slice(1, 9),
    "a list": [0, 2],
    "a flag of Python": True,
    "a tensor": torch.tensor(1),
}
SHAPES: list[tuple[int, ...]] = [(), (1,), (3,), (2, 3), (1, 3), (1, 1, 3), (3, 1)]


def values(*shape: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size((2, *shape)).numel()).view(2, *shape)


@pytest.mark.sweep
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES.keys())
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_batched", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_a_write_is_a_samples(
    index: Any, shape: tuple[int, ...], is_batched: bool, dtype: torch.dtype
) -> None:
    def f(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        made, given = torch.zeros(3, 3), x.clone()
        made[2, 0] = x[0, 0]
        made[index] = v
        given.t()[index] = v
        return made, given

    x, v = values(3, 3), values(*shape).to(dtype)
    try:
        expected = loop(f, x, v if is_batched else v[:1].expand_as(v))
    except RuntimeError:  # the shapes do not fit
        with pytest.raises(RuntimeError):
            tl.vmap(f)(x, v) if is_batched else tl.vmap(f, (0, None))(x, v[0])
        return
    same(tl.vmap(f)(x, v) if is_batched else tl.vmap(f, (0, None))(x, v[0]), expected)


@pytest.mark.parametrize("index", [3, -4, (0, 3), (0, 0, 0), (slice(None), slice(None), 1)])
def test_missing_index_is_an_error(index: Any) -> None:
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        y[index] = x[0, 0]
        return y

    with pytest.raises(IndexError):
        tl.vmap(f)(values(3, 3))
    assert tl.current_stack() == ()


@pytest.mark.parametrize("step", [0, -1])
def test_invalid_step_is_an_error(step: int) -> None:
    def f(x: Tensor) -> None:
        x.clone()[::step] = x[0]

    with pytest.raises(ValueError, match="step"):
        tl.vmap(f)(values(3))


@pytest.mark.parametrize("size", [1, 16, 96, 128, 500])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32, torch.complex128])
def test_rows_of_all_lengths(size: int, dtype: torch.dtype) -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.zeros(4, size, dtype=dtype)
        for i in range(3):
            y[i] = x + i
        y[3, ::2] = x[::2]
        return y

    x = values(size).to(dtype)
    assert_close(tl.vmap(f)(x), loop(f, x))
    assert_close(tl.vmap(f, in_dims=1)(x.t().contiguous()), loop(f, x))


def test_assignment_counts_as_a_write() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        square = y**2
        y[0] = x[1]
        return square.sum()

    batch = values(3).requires_grad_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        tl.vmap(f)(batch).sum().backward()

    def version(x: Tensor) -> Tensor:
        y = x.clone()
        before = torch._C._functorch.get_unwrapped(y)._version
        y[0] = x[1]
        assert torch._C._functorch.get_unwrapped(y)._version == before + 1
        return y

    tl.vmap(version)(values(3))


def test_assignment_of_a_tensor_to_itself() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        y[1:] = y[:-1].clone()
        y[0] += y[2]
        y[3] = y[3]
        return y

    same(tl.vmap(f)(values(4)), loop(f, values(4)))


def test_observers_see_operators() -> None:
    class Seen(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.names.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    def f(x: Tensor) -> Tensor:
        y = x.clone()
        y[0] = x[1]
        return y

    with Seen() as seen:
        found = tl.vmap(f)(values(3))
    assert {"select", "copy_"} <= set(seen.names)
    assert_close(found, loop(f, values(3)))
    with traced_steps() as events:
        tl.vmap(f)(values(3))
    assert "aten::copy_" in {event.op for event in events}


def test_write_to_a_captured_tensor_is_rejected_as_by_operators() -> None:
    captured = torch.zeros(3)

    def f(x: Tensor) -> None:
        captured[0] = x[0]

    with pytest.raises(RuntimeError, match="`captured`, of shape"):
        tl.vmap(f)(values(3))

    def by_number(x: Tensor) -> None:
        captured[x.argmax()] = 1.0

    with pytest.raises(RuntimeError, match="batched value"):
        tl.vmap(by_number)(values(3))
    assert_close(captured, torch.zeros(3))


def test_numbers_of_samples_beside_an_index() -> None:
    def f(x: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, index = x.clone(), torch.tensor([2, 0])
        read, column = y[i, j, index], y[:, index, j]
        y[i, j, index] = -read
        y[:, index, j] = column + 1
        return y, read, column

    given = values(3, 4, 5), torch.tensor([2, 0]), torch.tensor([1, 2])
    same(tl.vmap(f)(*given), loop(f, *given))


def test_a_number_past_the_end_is_an_error() -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        tl.vmap(lambda x: x[x.argmax() + 3])(values(3))


def test_a_flag_that_is_read_has_a_size_of_its_own() -> None:
    with pytest.raises(RuntimeError, match="fallback='loop'"):
        tl.vmap(lambda x: x[x.sum() > 0])(values(3))


def test_a_number_of_one_vmap_inside_another() -> None:
    a, b = values(3), values(3).flip(1)

    def f(x: Tensor, y: Tensor) -> Tensor:
        made = torch.zeros(3)
        made[x.argmax()] = y[y.argmin()]
        return made * x[y.argmax()]

    expected = loop(lambda x: loop(lambda y: f(x, y), b), a)
    same(tl.vmap(lambda x: tl.vmap(lambda y: f(x, y))(b))(a), expected)
    outer_alone = tl.vmap(lambda x: tl.vmap(lambda y: x[x.argmax()] * y)(b))(a)
    same(outer_alone, a.max(1).values[:, None, None] * b)


def test_in_branches() -> None:
    def f(x: Tensor) -> Tensor:
        def positive() -> Tensor:
            y = torch.zeros(3)
            y[x.argmax()] = x[x.argmin()]
            return y

        return tl.cond(x.sum() > 0, positive, lambda: x * 2)

    x = torch.stack([values(3)[0], -values(3)[1]])
    same(tl.vmap(f)(x), loop(f, x))


def test_by_the_operators_names() -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.zeros(3)
        operator.setitem(y, x.argmax(), operator.getitem(x, x.argmin()))
        return y

    same(tl.vmap(f)(values(3)), loop(f, values(3)))


def test_classes_of_their_own_keep_their_subscripts() -> None:
    class Half(Tensor):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index) / 2

    half = torch.ones(3).as_subclass(Half)
    assert half[0] == 0.5
    parameter = torch.nn.Parameter(values(3)[0])
    assert_close(tl.vmap(lambda x: parameter[x.argmin()])(values(3)), torch.ones(2))


def test_a_default_device_changes_nothing(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.zeros(3)
        y[x.argmax()] = x[0]
        return y * x[x.argmin()]

    with device:
        same(tl.vmap(f)(values(3)), loop(f, values(3)))
        slope = tl.grad(lambda x: f(x).sum())
        same(tl.vmap(slope)(values(3)), loop(slope, values(3)))


def test_each_thread_writes_its_own() -> None:
    found: dict[int, Tensor] = {}

    def write(number: int) -> None:
        def f(x: Tensor) -> Tensor:
            y = torch.zeros(50)
            for i in range(50):
                y[i] = x[0] * i + number
            return y

        found[number] = tl.vmap(f)(values(3))

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, rows in found.items():
        assert_close(rows, values(3)[:, :1] * torch.arange(50.0) + number)


def test_an_array_of_numpy_beside_an_index_of_samples() -> None:
    places = np.array([0, 2])

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        y[places, x[0].argmax()] = 7
        return y, x[x[0].argmax(), places]

    same(tl.vmap(f)(values(3, 3)), loop(f, values(3, 3)))
