"""Arithmetic of small tensors that is computed without torch's kernels.

The results must have the same bits, dtypes and strides as torch's, and whoever watches operators or
replaces their kernels must not notice. NOTE [Small kernels] in
csrc/rules/small_tensors/small_kernels.cpp.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import Library
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode

import torchlayers as tl
from torchlayers import _C

SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-310, 1e-42, 3e38, 1e308, 1.0, -1.5, 1 / 3)
SHAPES = [(8, 4), (8,), (2, 3, 4), (1, 1), (64, 4), (65, 4), (5, 0), (3, 1, 2)]  # 256 is the limit
NAMES = [name.removeprefix("aten::") for name in _C.small_kernels()]
TWO = [name for name in NAMES if name.endswith(".Tensor")]


def operator(name: str) -> Callable[..., Tensor]:
    packet, _, overload = name.partition(".")
    found: Callable[..., Tensor] = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return found


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Random numbers, half of them special ones."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.randint(2 * len(SPECIAL), shape, generator=generator)
    special = torch.tensor(SPECIAL * 2, dtype=torch.float64)[places]
    random = torch.randn(shape, generator=generator, dtype=torch.float64)
    return torch.where(places < len(SPECIAL), special, random).to(dtype)


def assert_same_bits(ours: Tensor, theirs: Tensor) -> None:
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert ours.stride() == theirs.stride()
    assert ours.is_inference() == theirs.is_inference()
    nan = theirs.isnan()  # whose bits depend on the order of operands in a register
    assert torch.equal(ours.isnan(), nan)
    as_bits = torch.int32 if theirs.dtype == torch.float32 else torch.int64
    zeroed = [y.masked_fill(nan, 0).contiguous().view(as_bits) for y in (ours, theirs)]
    assert torch.equal(*zeroed)


def in_transforms(call: Callable[..., Tensor], *operands: Tensor) -> dict[str, Tensor]:
    """The value of `call`, which reduces nothing, in transforms whose layers see it differently."""
    ones = [torch.ones_like(x) for x in operands]
    return {
        "vmap": tl.vmap(call)(*operands),
        "vjp": tl.vjp(call, *operands)[0],
        "jvp": tl.jvp(call, operands, tuple(ones))[0],
        "vmap(vjp)": tl.vmap(lambda *x: tl.vjp(call, *x)[0])(*operands),
        "vjp(vmap)": tl.vjp(tl.vmap(call), *operands)[0],
        "vmap(jvp)": tl.vmap(lambda *x: tl.jvp(call, x[:-1], x[-1:] * len(x[:-1]))[0])(
            *operands, ones[0]
        ),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_same_bits(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    op = operator(name)
    operands = [numbers(shape, dtype, seed) for seed in range(2 if name in TWO else 1)]
    for transform, value in in_transforms(op, *operands).items():
        assert_same_bits(value, op(*operands)), transform


OTHERS: dict[str, Any] = {
    "2": 2,
    "-0.0": -0.0,
    "1e300": 1e300,
    "0.1": 0.1,
    "2 ** 53 + 1": 2**53 + 1,
    "2 ** 24 + 1": 2**24 + 1,
    "True": True,
    "nan": math.nan,
    "float32": torch.tensor(0.1),
    "float64": torch.tensor(0.1, dtype=torch.float64),
    "int64": torch.tensor(2**60 + 1),
    "int32": torch.tensor(7, dtype=torch.int32),
    "bool": torch.tensor(True),
    "complex": torch.tensor(1 + 2j),
    "half": torch.tensor(0.1, dtype=torch.float16),
    "one vector": torch.tensor([0.3, -0.0, math.inf, 5.0]),
    "a vector of float64": torch.tensor([0.3, -0.0, math.inf, 5.0], dtype=torch.float64),
    "flags": torch.tensor([True, False, True, True]),
    "integers": torch.tensor([2**24 + 1, 0, -3, 4]),
    "one row": torch.randn(1, 4),
    "negated": torch._neg_view(torch.randn(4)),
}


def outcome(call: Callable[[], Tensor]) -> Tensor | type[Exception]:
    try:
        return call()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        return type(error)


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
@pytest.mark.parametrize("name", TWO)
def test_other_operands(name: str, other: Any) -> None:
    """Numbers and tensors that are converted, broadcast or refused."""
    op = operator(name)
    for dtype in (torch.float32, torch.float64):
        x = numbers((8, 4), dtype)
        for call in (lambda x: op(x, other), lambda x: op(other, x)):
            rows = outcome(lambda: torch.stack([call(row) for row in x.unbind()]))  # noqa: B023
            if isinstance(rows, type) or rows.dtype not in (torch.float32, torch.float64):
                continue
            assert_same_bits(tl.vmap(call)(x), rows)
            assert_same_bits(tl.vjp(call, x)[0], outcome(lambda: call(x)))  # noqa: B023


@pytest.mark.parametrize("name", TWO)
def test_samples_that_are_numbers(name: str) -> None:
    op = operator(name)
    for one, other in [(torch.float32, torch.float32), (torch.float32, torch.float64)]:
        x, y = numbers((8,), one), numbers((8,), other, 1)
        loop = torch.stack([op(a, b) for a, b in zip(x, y, strict=True)])
        assert_same_bits(tl.vmap(op)(x, y), loop)
        loop = torch.stack([op(a, y[0]) for a in x])
        assert_same_bits(tl.vmap(op, (0, None))(x, y[0]), loop)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.t().contiguous().t(),
    "every second": lambda x: torch.stack([x, x], -1)[..., 0],
    "expanded": lambda x: x[0, 0].expand(x.shape),
    "one row expanded": lambda x: x[:1].expand(x.shape),
    "offset": lambda x: torch.cat([x[:1], x])[1:],
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("name", NAMES)
def test_layouts(name: str, layout: Callable[[Tensor], Tensor]) -> None:
    op = operator(name)
    x, y = numbers((8, 4), torch.float32), numbers((8, 4), torch.float32, 1)
    for operands in [(layout(x), y), (x, layout(y)), (layout(x), layout(y))]:
        given = operands if name in TWO else operands[:1]
        assert_same_bits(tl.vjp(op, *given)[0], op(*given))
        assert_same_bits(tl.vmap(op)(*given).clone(), op(*given).clone())


@pytest.mark.parametrize("name", ["add.Tensor", "sub.Tensor"])
@pytest.mark.parametrize("alpha", [1, 1.0, True, 2, 0.5, -0.0])
def test_alpha(name: str, alpha: float) -> None:
    op = operator(name)
    x, y = numbers((8, 4), torch.float32), numbers((8, 4), torch.float32, 1)
    plain = outcome(lambda: op(x, y, alpha=alpha))
    for value in (
        outcome(lambda: tl.vmap(lambda x, y: op(x, y, alpha=alpha))(x, y)),
        outcome(lambda: tl.vjp(lambda x: op(x, y, alpha=alpha), x)[0]),
    ):
        if isinstance(plain, type):
            assert isinstance(value, type) and issubclass(value, plain)
        else:
            assert_same_bits(value, plain)


def test_inference_mode() -> None:
    with torch.inference_mode():
        x = torch.randn(8, 4)
        assert_same_bits(tl.vmap(torch.neg)(x), -x)
    y = torch.randn(8, 4)
    assert_same_bits(tl.vmap(torch.mul)(x, y), x * y)


def test_flushed_denormals() -> None:
    x = torch.full((8, 4), 1e-42)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush denormal numbers")
    try:
        assert_same_bits(tl.vmap(lambda x: x * 1.5)(x), x * 1.5)
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("transform", ["vmap", "vjp", "jvp"])
def test_observers_see_the_operator(transform: str) -> None:
    x = torch.randn(8, 4)

    class Names(TorchDispatchMode):
        seen: list[str] = []  # noqa: RUF012

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    in_transforms(torch.mul, x, x)[transform]
    with Names() as mode:
        in_transforms(torch.mul, x, x)
    assert mode.seen.count("aten.mul.Tensor") >= 6
    with profile() as profiler:
        in_transforms(torch.mul, x, x)
    assert sum(event.name == "aten::mul" for event in profiler.events()) >= 6


@pytest.mark.parametrize("nest", ["vmap", "vjp", "jvp", "vmap(vjp)", "vjp(vmap)", "vmap(jvp)"])
@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_kernels_that_a_library_has_replaced(nest: str) -> None:
    x = torch.full((8, 4), 2.0)
    library = Library("aten", "IMPL")
    try:
        library.impl("mul.Tensor", lambda x, y: torch.full_like(x, 7.0), "CPU")
        assert in_transforms(torch.mul, x, x)[nest].eq(7).all()
    finally:
        library._destroy()
    assert in_transforms(torch.mul, x, x)[nest].eq(4).all()


INNER: dict[str, Callable[..., Any]] = {
    "grad": tl.grad,
    "vmap": tl.vmap,
    "jvp": lambda f: lambda x: tl.jvp(f, (x,), (x,))[1],
}


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER.keys())
def test_results_belong_to_torch_funcs_levels(inner: Callable[..., Any]) -> None:
    """Such a level wraps what is computed in it, which may then be written to."""
    constant = torch.full((3,), 2.0)

    def writes(x: Tensor) -> Tensor:
        y = -constant
        y.sin_()
        return (y * x**2).sum()

    def does_not(x: Tensor) -> Tensor:
        return ((-constant).sin() * x**2).sum()

    x = torch.randn(3, 3)
    gradients = [
        torch.func.grad(lambda x, f=function: inner(f)(x).sum())(x)
        for function in (writes, does_not)
    ]
    torch.testing.assert_close(*gradients)
