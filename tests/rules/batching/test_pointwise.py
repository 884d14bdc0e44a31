"""Pointwise operators, backward ones included, with every choice of batched operands.

vmap gives what a loop over the samples gives: for samples of different ranks, for sizes below and
above the limit of one pass, for any memory layout, and in every dtype that the operator supports.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.func
from torch import Tensor, nn
from torch.nn.functional import gelu, mish
from torch.testing import assert_close

import torchlayers as tl
from tests.support.rule_tables import BATCHING

BATCH = 2
DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
    torch.int64,
    torch.bool,
)

# Batched by their pointwise tag, or, where they lack it, by a batching rule of ours.
UNTAGGED = (
    "elu_backward",
    "gelu_backward",
    "hardshrink_backward",
    "hardsigmoid_backward",
    "hardswish_backward",
    "hardtanh_backward",
    "leaky_relu_backward",
    "log_sigmoid_backward",
    "mish_backward",
    "rrelu_with_noise_backward",
    "silu_backward",
    "softplus_backward",
    "softshrink_backward",
)
# Keyword arguments, and values of number arguments.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "gelu_backward": [{"approximate": "none"}, {"approximate": "tanh"}],
    "gelu": [{"approximate": "none"}, {"approximate": "tanh"}],
    "rrelu_with_noise_backward": [{"training": True}],
    "clamp": [{"min": 0.3, "max": 0.7}],
    "div.Tensor_mode": [{"rounding_mode": mode} for mode in (None, "floor", "trunc")],
}
MASKS = ("condition", "mask")
OF_TYPE = {"number": 0.5, "float": 0.5, "bool": False, "int": 1}
WHOLE = ("bitwise", "__")


def overload(name: str) -> torch._ops.OpOverload:
    base, _, rest = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), rest or "default")


def is_tensor(argument: Any) -> bool:
    return str(argument.type) in ("Tensor", "Optional[Tensor]")


def is_pointwise(name: str) -> bool:
    try:
        op = overload(name)
    except AttributeError:
        return False
    schema = op._schema
    return (
        torch.Tag.pointwise in op.tags
        and not schema.is_mutable
        and [str(each.type) for each in schema.returns] == ["Tensor"]
        and not torch._C._dispatch_has_kernel_for_dispatch_key(
            f"aten::{name}", "CompositeImplicitAutograd"
        )
        and not any(each.name in ("memory_format", "generator") for each in schema.arguments)
        and not any("List" in str(each.type) for each in schema.arguments)
    )


POINTWISE = sorted(
    {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and is_pointwise(name.removeprefix("aten::"))
    }
    | set(UNTAGGED)
)


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    random = torch.rand(shape, generator=generator) * 0.8 + 0.1
    if dtype == torch.bool:
        return random > 0.5
    if dtype.is_complex:
        return torch.complex(random, 1 - random).to(dtype)
    if not dtype.is_floating_point:
        return (random * 9).to(dtype)
    return random.to(dtype)


LAYOUTS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x,
    lambda x: x.transpose(0, -1).contiguous().transpose(0, -1) if x.dim() else x,
    lambda x: torch.stack([x, x], -1)[..., 0],
    lambda x: x[:1].expand_as(x) if x.dim() else x,
)
SMALL, LARGE = (3, 4), (3, 100)


def shapes_of(shape: tuple[int, ...], count: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Shapes for `count` operands: all equal, then each one of lower rank, then all but one."""
    lower = (shape[1:], (shape[0], 1), ())
    yield (shape,) * count
    for i, other in itertools.product(range(count if count > 1 else 0), lower):
        yield (shape,) * i + (other,) + (shape,) * (count - i - 1)
    if count > 1:
        yield (shape[1:],) * (count - 1) + (shape,)


def calls(name: str) -> Iterator[tuple[Callable[..., Tensor], list[bool]]]:
    """The operator as functions of its tensors, each with the positions that are masks."""
    op = overload(name)
    for given in VARIANTS.get(name, [{}]):
        filled: dict[str, Any] = {}
        places: list[str] = []
        for argument in op._schema.arguments:
            if argument.name in given:
                filled[argument.name] = given[argument.name]
            elif is_tensor(argument):
                places.append(argument.name)
            elif not argument.has_default_value():
                filled[argument.name] = OF_TYPE.get(str(argument.type))
                if name.startswith(WHOLE):
                    filled[argument.name] = 2

        def call(
            *tensors: Tensor, filled: dict[str, Any] = filled, places: list[str] = places
        ) -> Tensor:
            by_name = filled | dict(zip(places, tensors, strict=True))
            names = [each.name for each in op._schema.arguments if not each.kwarg_only]
            positional = [by_name.pop(name) for name in names if name in by_name]
            return op(*positional, **by_name)

        yield call, [place in MASKS for place in places]


def takes(call: Callable[..., Tensor], tensors: list[Tensor]) -> bool:
    try:
        call(*tensors)
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    return True


def one_by_one(
    call: Callable[..., Tensor], tensors: list[Tensor], dims: tuple[int | None, ...]
) -> Tensor:
    """Loops over the samples, which are first broadcast to one shape."""
    each = [
        [x if d is None else x.select(d, i) for x, d in zip(tensors, dims, strict=True)]
        for i in range(BATCH)
    ]
    return torch.stack([call(*torch.broadcast_tensors(*samples)) for samples in each])


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_operators_broadcast_as_a_loop_does(name: str) -> None:
    ran = False
    for (call, masks), dtype, size in itertools.product(calls(name), DTYPES, (SMALL, LARGE)):
        dtypes = [torch.bool if is_mask else dtype for is_mask in masks]
        if not takes(call, [values(size, each, 0) for each in dtypes]):
            continue
        ran = True
        all_dims = (0, None) if size == LARGE else (0, None, -1)
        for turn, shapes in enumerate(shapes_of(size, len(masks))):
            for dims in itertools.product(all_dims, repeat=len(masks)):
                if set(dims) == {None}:
                    continue
                tensors = []
                for i, (shape, each, dim) in enumerate(zip(shapes, dtypes, dims, strict=True)):
                    sizes = {None: shape, 0: (BATCH, *shape), -1: (*shape, BATCH)}[dim]
                    lay = LAYOUTS[(i + turn + len(set(dims))) % len(LAYOUTS)]
                    tensors.append(lay(values(sizes, each, i)))
                found = tl.vmap(call, in_dims=dims)(*tensors)
                # Vectorized and scalar kernels round differently.
                low = dtype in (torch.bfloat16, torch.float16)
                digits = {"rtol": 2e-2, "atol": 1e-2} if low else {}
                assert_close(found, one_by_one(call, tensors, dims), equal_nan=True, **digits)
    assert ran


def test_every_pointwise_rule_of_ours_is_tried() -> None:
    assert {f"aten::{name}" for name in UNTAGGED} <= set(BATCHING.operators)
    assert set(UNTAGGED) <= set(POINTWISE)
    assert {"mul.Tensor", "where.self", "special_hermite_polynomial_h"} <= set(POINTWISE)


def test_shape_error_reports_a_samples_shapes() -> None:
    """The sizes and the dimension in the error do not count the batch."""
    g, x = torch.ones(BATCH, 3), torch.ones(BATCH, 2)
    with pytest.raises(RuntimeError, match=r"size of tensor a \(3\).* b \(2\).* dimension 0"):
        tl.vmap(torch.ops.aten.gelu_backward)(g, x)
    assert tl.current_stack() == ()


NETWORKS: dict[str, Callable[[Any], Any]] = {
    "none": functools.partial(gelu, approximate="none"),
    "tanh": functools.partial(gelu, approximate="tanh"),
    "mish": mish,
}


@pytest.mark.parametrize("size", [3, 17, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_jacobians_of_activations(name: str, dtype: torch.dtype, size: int) -> None:
    """Cotangents from a basis are combined with unbatched values."""
    activation = NETWORKS[name]
    x = torch.linspace(-2, 2, size).to(dtype)
    (slopes,) = torch.autograd.grad(activation(z := x.clone().requires_grad_()).sum(), z)
    for jacobian in (tl.jacrev, tl.jacfwd):
        assert_close(jacobian(activation)(x), slopes.diag())
    twice = tl.hessian(lambda x: activation(x).sum())
    exact = torch.func.hessian(lambda x: activation(x).sum())(x.double())
    assert_close(twice(x).double(), exact, rtol=2e-2, atol=2e-2 if size < 300 else 5e-2)
    assert_close(tl.vmap(twice)(x[None]), twice(x)[None])


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_jacobian_of_a_network_of_gelus(approximate: str) -> None:
    torch.manual_seed(0)
    layers = nn.Linear(8, 32), nn.GELU(approximate), nn.Linear(32, 16)
    model = nn.Sequential(*layers).requires_grad_(requires_grad=False)
    x = torch.randn(12, 8)
    assert_close(tl.jacrev(model)(x[0]), tl.jacfwd(model)(x[0]))
    for transform in ("jacrev", "jacfwd"):
        ours, theirs = (getattr(library, transform) for library in (tl, torch.func))
        assert_close(tl.vmap(ours(model))(x), torch.func.vmap(theirs(model))(x))


@pytest.mark.parametrize("shape", [(2, 0), (3, 400)])
def test_mish_has_no_loop_over_samples(shape: tuple[int, ...]) -> None:
    """A loop would warn, and does not run for empty samples."""
    x = torch.linspace(-1, 1, shape[0] * shape[1]).view(shape)
    if not x.numel():
        assert tl.jacfwd(mish)(x).shape == (2, 0, 2, 0)
    _, slopes = tl.vmap(lambda x: tl.jvp(mish, (x,), (torch.ones_like(x),)))(x)
    assert_close(slopes, tl.grad(lambda x: mish(x).sum())(x))
