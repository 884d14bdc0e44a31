"""Functions of one sample of three numbers that create tensors and write to them in place."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Sample = Callable[[Tensor], Any]

CAPTURED = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
DOUBLE = {"dtype": torch.float64}


def _with(y: Tensor, write: Callable[[Tensor], object]) -> Tensor:
    write(y)
    return y


def _first(y: Tensor, x: Tensor) -> Tensor:
    """Writes parts of x into the factory's tensor."""
    y[0] = x[1]
    y[1:] *= x[2]
    return y


FACTORIES: dict[str, Sample] = {
    "zeros": lambda x: _first(torch.zeros(3, **DOUBLE), x),
    "ones": lambda x: _first(torch.ones(3, **DOUBLE), x),
    "empty": lambda x: _first(torch.empty(3, **DOUBLE).fill_(2.0), x),
    "full": lambda x: _first(torch.full((3,), 1.5, **DOUBLE), x),
    "arange": lambda x: _first(torch.arange(3, **DOUBLE), x),
    "linspace": lambda x: _first(torch.linspace(0, 1, 3, **DOUBLE), x),
    "eye": lambda x: _first(torch.eye(3, **DOUBLE), x),
    "empty_strided": lambda x: _first(torch.empty_strided((3, 2), (1, 3), **DOUBLE).fill_(1.0), x),
    "tensor": lambda x: _first(torch.tensor([1.0, 2.0, 3.0], **DOUBLE), x),
    "tensor of a list of lists": lambda x: _first(torch.tensor([[1.0, 2.0]] * 3, **DOUBLE), x),
    "new_zeros of a captured one": lambda x: _first(CAPTURED.new_zeros(3), x),
    "new_tensor": lambda x: _first(CAPTURED.new_tensor([1.0, 2.0, 3.0]), x),
    "ones_like of a captured one": lambda x: _first(torch.ones_like(CAPTURED), x),
    "zeros_like of a sample": lambda x: _first(torch.zeros_like(x), x),
    "clone of a captured one": lambda x: _first(CAPTURED.clone(), x),
    "a product of captured ones": lambda x: _first(CAPTURED * CAPTURED, x),
    "a conversion": lambda x: _first(CAPTURED.to(torch.float32), x).double(),
    "cat": lambda x: _first(torch.cat([CAPTURED, CAPTURED]), x),
    "one_hot": lambda x: _first(F.one_hot(torch.arange(3)).double(), x),
    "tril_indices": lambda x: _first(torch.tril_indices(3, 3).t().double(), x),
    "meshgrid": lambda x: _first(
        torch.meshgrid(CAPTURED.clone(), CAPTURED, indexing="ij")[1] * 1, x
    ),
    "another that was written to": lambda x: _first(_first(torch.zeros(3, **DOUBLE), x) + 1, x),
    "deepcopy": lambda x: _first(
        torch.zeros(3, **DOUBLE).clone(memory_format=torch.preserve_format), x
    ),
}

WRITES: dict[str, Sample] = {
    "an item at a time": lambda x: _items(x),
    "a slice": lambda x: _with(torch.zeros(4, **DOUBLE), lambda y: y.__setitem__(slice(1, 4), x)),
    "every other": lambda x: _with(
        torch.zeros(6, **DOUBLE), lambda y: y.__setitem__(slice(0, 6, 2), x)
    ),
    "an ellipsis": lambda x: _with(
        torch.zeros(2, 3, **DOUBLE), lambda y: y.__setitem__((..., 1), x[:2])
    ),
    "a row by a number": lambda x: _with(torch.ones(2, 3, **DOUBLE), lambda y: y[1].fill_(x[0])),
    "copy_": lambda x: torch.empty(3, **DOUBLE).copy_(x),
    "copy_ of another dtype": lambda x: torch.zeros(3).copy_(x).double() - x.float().double(),
    "add_": lambda x: torch.ones(2, 3, **DOUBLE).add_(x, alpha=2),
    "+=": lambda x: _iadd(x),
    "arithmetic in place": lambda x: torch.ones(3, **DOUBLE).mul_(x).div_(x + 5).sub_(x).pow_(2),
    "addcmul_": lambda x: torch.ones(3, **DOUBLE).addcmul_(x, x, value=0.5),
    "lerp_": lambda x: torch.ones(3, **DOUBLE).lerp_(x, 0.3),
    "clamp_": lambda x: torch.ones(3, **DOUBLE).clamp_(max=x),
    "addmm_": lambda x: torch.eye(3, **DOUBLE).addmm_(x[:, None], x[None]),
    "baddbmm_": lambda x: torch.ones(2, 3, 3, **DOUBLE).baddbmm_(
        x[:, None].expand(2, 3, 1), x.expand(2, 1, 3)
    ),
    "index_put_": lambda x: torch.zeros(4, **DOUBLE).index_put_((torch.tensor([3, 1, 0]),), x),
    "index_put_ that adds": lambda x: torch.zeros(4, **DOUBLE).index_put_(
        (torch.tensor([3, 1, 3]),), x, accumulate=True
    ),
    "at places of its own": lambda x: _with(
        torch.zeros(3, **DOUBLE), lambda y: y.__setitem__(x.argsort(), x * 2)
    ),
    "a number at places of its own": lambda x: (
        _with(torch.zeros(3, **DOUBLE), lambda y: y.__setitem__(x.argmax()[None], 1.0)) * x
    ),
    "rows at places of its own": lambda x: _with(
        torch.zeros(3, 2, **DOUBLE), lambda y: y.__setitem__(x.argsort()[:2], x[:2, None])
    ),
    "by lists apart": lambda x: _with(
        torch.zeros(3, 2, 3, **DOUBLE),
        lambda y: y.__setitem__(([2, 0], slice(None), [0, 1]), x[:2]),
    ),
    "by a mask": lambda x: _with(torch.ones(3, **DOUBLE), lambda y: y.__setitem__(x > 0, 0.0)) * x,
    "a number by a mask": lambda x: (
        _with(torch.ones(3, **DOUBLE), lambda y: y.__setitem__(x > 0, x.sum())) * x
    ),
    "one element by a mask": lambda x: _with(
        x.clone(), lambda y: y.__setitem__(x > 0, x[:1].sin())
    ),
    "rows by a mask": lambda x: _with(
        torch.ones(3, 2, **DOUBLE), lambda y: y.__setitem__(x > 0, x[:2])
    ),
    "columns by a mask": lambda x: _with(
        torch.ones(2, 3, **DOUBLE), lambda y: y.__setitem__((slice(None), x > 0), x[:2, None])
    ),
    "a matrix by a mask": lambda x: _with(
        torch.ones(2, 3, 3, 2, **DOUBLE),
        lambda y: y.__setitem__((slice(None), x[:, None] > x), x[:2].expand(2, 1, 2)),
    ),
    "a part of it by a mask": lambda x: _with(
        torch.ones(3, 2, **DOUBLE), lambda y: y.__setitem__((x > 0, 0), x.prod())
    ),
    "adding by a mask": lambda x: torch.ones(3, **DOUBLE).index_put_(
        (x > 0,), x.sum(), accumulate=True
    ),
    "index_put by a mask": lambda x: torch.index_put(CAPTURED, (x > 0,), x.sum()),
    "masked_fill_": lambda x: torch.ones(2, 3, **DOUBLE).masked_fill_(x > 0, 3.0) * x,
    "masked_fill_ by a number": lambda x: torch.ones(3, **DOUBLE).masked_fill_(x > 0, x.sum()),
    "masked_scatter_": lambda x: torch.ones(3, **DOUBLE).masked_scatter_(x > 0, x * 2),
    "scatter_": lambda x: torch.zeros(4, **DOUBLE).scatter_(0, x.argsort(), x),
    "scatter_add_": lambda x: torch.ones(2, **DOUBLE).scatter_add_(0, torch.tensor([0, 1, 1]), x),
    "index_copy_": lambda x: torch.zeros(4, **DOUBLE).index_copy_(0, torch.tensor([2, 0, 1]), x),
    "index_add_": lambda x: torch.ones(4, **DOUBLE).index_add_(0, torch.tensor([2, 0, 2]), x),
    "index_fill_": lambda x: torch.ones(3, **DOUBLE).index_fill_(0, torch.tensor([1]), x[0]),
    "fill_diagonal_ and a diagonal": lambda x: (
        _with(torch.zeros(3, 3, **DOUBLE), lambda y: y.diagonal().copy_(x)).fill_diagonal_(2.0) * x
    ),
    "cumsum_": lambda x: torch.ones(3, **DOUBLE).mul_(x).cumsum_(0),
}

VIEWS: dict[str, Sample] = {
    "a view made before": lambda x: _view_before(x),
    "a view made after": lambda x: _view_after(x),
    "a view of a view": lambda x: _with(
        torch.zeros(3, 4, **DOUBLE), lambda y: y[1:][:, 2:].t()[1].copy_(x[:2])
    ),
    "a transpose": lambda x: _with(torch.zeros(2, 3, **DOUBLE), lambda y: y.t().copy_(x[:, None])),
    "view, unflatten, flatten": lambda x: _with(
        torch.zeros(6, **DOUBLE), lambda y: y.view(2, 3).unflatten(1, (3, 1)).flatten(1)[0].copy_(x)
    ),
    "permute": lambda x: _with(
        torch.zeros(2, 3, 1, **DOUBLE), lambda y: y.permute(2, 0, 1).add_(x)
    ),
    "select, narrow, expand_as": lambda x: _with(
        torch.zeros(4, 3, **DOUBLE), lambda y: _pieces(y, x)
    ),
    "unfold": lambda x: _with(torch.zeros(6, **DOUBLE), lambda y: y.unfold(0, 3, 3)[1].copy_(x)),
    "squeeze and unsqueeze": lambda x: _with(
        torch.zeros(1, 3, **DOUBLE), lambda y: y.squeeze(0).unsqueeze(-1)[0].copy_(x[:1])
    ),
    "reshape": lambda x: _with(torch.zeros(2, 3, **DOUBLE), lambda y: y.reshape(-1)[2:5].copy_(x)),
    "as_strided": lambda x: _with(
        torch.zeros(6, **DOUBLE), lambda y: y.as_strided((3,), (2,), 1).copy_(x)
    ),
    "real and imaginary parts": lambda x: _complex(x),
    "another dtype of its bits": lambda x: _bits(x),
    "its only view": lambda x: _with(torch.arange(9, **DOUBLE)[2:5], lambda y: y[1:].add_(x[0])),
    "in place by shape": lambda x: _in_place_by_shape(x),
    "both know of both": lambda x: _both_ways(x),
}

PROGRAMS: dict[str, Sample] = {
    "list buffers": lambda x: _list_buffers(x),
    "a recurrence": lambda x: _recurrence(x),
    "a table of two dimensions": lambda x: _edit_table(x),
    "read before, written after": lambda x: _read_before(x),
    "constants written first": lambda x: _constants_first(x),
    "out=": lambda x: _out(x),
    "an attribute": lambda x: _attribute(x),
    "what is never written": lambda x: (torch.zeros(3, **DOUBLE), x * torch.ones(3, **DOUBLE)),
    "padding by hand": lambda x: _with(
        torch.zeros(x.shape[0] + 2, **DOUBLE), lambda y: y[1:-1].copy_(x)
    ),
    "a function of its own": lambda x: _Square.apply(
        _with(torch.ones(3, **DOUBLE), lambda y: y.mul_(x))
    ),
    "what a function of its own has made": lambda x: _first(_Square.apply(CAPTURED), x),
    "swapped in place": lambda x: _swap(x),
}

# Zero-dimensional tensors as an index that differs between samples.
NUMBERS: dict[str, Sample] = {
    "an element": lambda x: _set(torch.zeros(3, **DOUBLE), x.argmax(), x.sum()),
    "an element of a clone": lambda x: _set(x.clone(), x.argmin(), x[0] ** 2),
    "a row": lambda x: _set(torch.zeros(3, 2, **DOUBLE), x.argmax(), x[:2]),
    "a part of a row": lambda x: _set(
        torch.zeros(3, 3, **DOUBLE), (x.argmax(), slice(1, 3)), x[None, :2]
    ),
    "a column": lambda x: _set(torch.ones(3, 3, **DOUBLE), (..., x.argmin()), x),
    "two of them apart": lambda x: _set(
        torch.ones(3, 2, 3, **DOUBLE), (x.argmin(), slice(None), x.argmax()), x[:2]
    ),
    "beside a list": lambda x: _set(
        torch.ones(3, 3, 3, **DOUBLE), (x.argmin(), slice(None), [0, 2]), x[:2]
    ),
    "behind a list": lambda x: _set(
        torch.ones(2, 3, 3, **DOUBLE), ([1, 0], slice(None), x.argmin()), x
    ),
    "beside a mask": lambda x: _set(
        torch.ones(3, 2, 3, **DOUBLE), (x.argmin(), slice(None), CAPTURED > 0), x[:2]
    ),
    "beside None": lambda x: _set(torch.ones(3, 3, **DOUBLE), (None, x.argmin(), 1), x[2]),
    "counted from behind": lambda x: _set(torch.ones(3, **DOUBLE), x.argmin() - 3, x[2]),
    "of int32": lambda x: _set(torch.ones(3, **DOUBLE), x.argmin().int(), x[2]),
    "a number is written": lambda x: _set(torch.ones(3, **DOUBLE) + x, x.argmin(), 2.5),
    "of another dtype": lambda x: _set(torch.zeros(3, **DOUBLE), x.argmax(), x.sum().float()),
    "added to": lambda x: _add(x.clone(), x.argmax(), x[1] * x[2]),
    "a row is added to": lambda x: _add(torch.outer(x, x), x.argmax(), x.sin()),
    "that the function wrote": lambda x: _counted(x),
    "read": lambda x: x[x.argmax()] * x[x.argmin()],
    "a row is read": lambda x: torch.outer(x, x)[x.argmax()] * x,
    "a column is read": lambda x: torch.outer(x, x)[:, x.argmax()] * x,
    "an element is read": lambda x: torch.outer(x, x)[x.argmax(), -1],
    "read beside a list": lambda x: torch.outer(x, x)[[0, 1], x.argmax()],
    "a captured one is read": lambda x: CAPTURED[x.argmin()] * x,
    "a flag": lambda x: _set(torch.zeros(3, **DOUBLE), x.sum() > 0, x),
    "a flag and a number": lambda x: _set(
        torch.zeros(3, 3, **DOUBLE), (x.argmax(), x.sum() > 0), x.exp()
    ),
    "a flag behind a slice": lambda x: _set(
        torch.zeros(3, **DOUBLE), (slice(1, 3), x.sum() > 0), x[:2, None]
    ),
    "a flag before slices": lambda x: _set(
        torch.zeros(3, 2, **DOUBLE), (x.sum() > 0, slice(1, 3), 1), x[:2]
    ),
    "a flag behind a slice, before a row": lambda x: _set(
        torch.zeros(2, 3, 3, **DOUBLE), (slice(None), x.argmax(), x.sum() > 0), x.exp()
    ),
    "a flag beside a list of one": lambda x: _set(
        torch.zeros(3, 2, **DOUBLE), ([1], x.sum() > 0), x[:2]
    ),
    "a flag apart from a list of one": lambda x: _set(
        torch.zeros(3, 2, 3, **DOUBLE), (x.sum() > 0, slice(1, 3), [1]), x[None, :2, None]
    ),
    "two flags": lambda x: _set(torch.zeros(3, **DOUBLE), (x.sum() > 0, x[0] > 0), x),
    "two flags apart": lambda x: _set(
        torch.zeros(3, **DOUBLE), (x.sum() > 0, slice(None), x[0] > 0), x
    ),
    "a flag that the function wrote": lambda x: _flagged(x),
    "a number beside a flag of Python": lambda x: _set(
        torch.zeros(3, 2, **DOUBLE), (True, x.argmax()), x[:2]
    ),
    "a number beside a flag of Python is read": lambda x: torch.outer(x, x)[x.argmax(), True] * x,
}


def _set(y: Tensor, index: Any, value: Any) -> Tensor:
    y[index] = value
    return y


def _add(y: Tensor, index: Any, value: Tensor) -> Tensor:
    y[index] += value
    return y


def _counted(x: Tensor) -> Tensor:
    y, place = torch.zeros(3, **DOUBLE), torch.tensor(-1)
    for i in range(3):
        place += x[i] > 0
        y[place] += x[i]
    return y


def _flagged(x: Tensor) -> Tensor:
    y, flag = x.clone(), torch.tensor(False)
    for i in range(3):
        flag ^= x[i] > 0
        y[flag] = y.clone() * x[i]
    return y


CONSTRUCTS: dict[str, Sample] = {**FACTORIES, **WRITES, **VIEWS, **PROGRAMS, **NUMBERS}


def _items(x: Tensor) -> Tensor:
    y = torch.zeros(3, **DOUBLE)
    for i in range(3):
        y[i] = x[i] * (i + 1)
    return y


def _iadd(x: Tensor) -> Tensor:
    y = torch.ones(3, **DOUBLE)
    same = y
    y += x
    assert y is same
    return y


def _view_before(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.zeros(2, 3, **DOUBLE)
    row = y[1]
    y[1, 0] = x[0]
    row[2] = x[2]
    return y, row


def _view_after(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.zeros(2, 3, **DOUBLE)
    y[1, 0] = x[0]
    row = y[1]
    row += x
    return y, row * 2


def _pieces(y: Tensor, x: Tensor) -> None:
    y.select(0, 1).copy_(x)
    y.narrow(0, 2, 2)[1].mul_(2).add_(x)
    y[:1].expand_as(y[:1]).add_(x[0])


def _complex(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.zeros(3, dtype=torch.complex128)
    y.real.copy_(x)
    torch.view_as_real(y)[:, 1] += 2 * x
    return y.real * 1, y.conj().imag * 1


def _bits(x: Tensor) -> Tensor:
    y = torch.zeros(3, **DOUBLE)
    bits = y.view(torch.int64)
    y.copy_(x)
    return torch.where(bits == 0, 0.0, y)


def _in_place_by_shape(x: Tensor) -> Tensor:
    y = torch.zeros(2, 3, **DOUBLE)
    y[0] = x
    y.t_()
    y[0, 1] = x[1]
    y.unsqueeze_(0).squeeze_(0)
    return y


def _both_ways(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.zeros(4, **DOUBLE)
    low, high = y[:2], y[2:]
    low[1] = x[0]
    y *= 2
    y[2:] += x[:2]
    return y, low * high, y.sum()


def _list_buffers(x: Tensor) -> list[Tensor]:
    buffers = [torch.zeros(2, **DOUBLE) for _ in range(3)]
    for i in range(3):
        for buffer in buffers[i:]:
            buffer[i % 2] += x[i]
    return buffers


def _recurrence(x: Tensor) -> Tensor:
    y = torch.zeros(4, **DOUBLE)
    for i in range(3):
        y[i + 1] = torch.tanh(0.5 * y[i]) + x[i]
    return y


def _edit_table(x: Tensor) -> Tensor:
    costs = torch.zeros(4, 4, **DOUBLE)
    costs[0] = torch.arange(4, **DOUBLE)
    costs[:, 0] = torch.arange(4, **DOUBLE)
    for i in range(1, 4):
        for j in range(1, 4):
            step = (x[i - 1] - x[j - 1]) ** 2
            costs[i, j] = torch.minimum(costs[i - 1, j] + 1, costs[i - 1, j - 1] + step)
    return costs


def _read_before(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.arange(3, **DOUBLE)
    doubled, copied = y * 2, y.clone()
    y[0] = x[0]
    return doubled * x, copied, y


def _constants_first(x: Tensor) -> Tensor:
    y = torch.zeros(3, **DOUBLE)
    y[0] = 1.0
    y += 2
    y[2] = x[0]
    y[1] = -1.0
    return y


def _out(x: Tensor) -> tuple[Tensor, ...]:
    y, z = torch.empty(3, **DOUBLE), torch.empty(0, **DOUBLE)
    values, places = torch.empty((), **DOUBLE), torch.empty((), dtype=torch.int64)
    x = x.detach()  # torch requires it for out=
    torch.mul(x, 2, out=y)
    torch.add(x, y, out=z)
    torch.max(x, 0, out=(values, places))
    return y, z, values, places


def _attribute(x: Tensor) -> Tensor:
    class Counter:
        def __init__(self) -> None:
            self.seen = torch.zeros(3, **DOUBLE)

        def see(self, x: Tensor) -> None:
            self.seen += x

    counter = Counter()
    counter.see(x)
    counter.see(x**2)
    return counter.seen


class _Square(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**2

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * gradient

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * tangent


def _swap(x: Tensor) -> Tensor:
    y = torch.zeros(3, **DOUBLE)
    y[:] = x
    y[0], y[2] = y[2].clone(), y[0].clone()
    return y
