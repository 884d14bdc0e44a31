"""Keyed implementations of torch's random operators, for layers that draw by a key.

NOTE [Drawing by a key] is in csrc/layers/random/keyed_draws.h. A function here takes the key of the
draw, followed by the operator's arguments. It runs on the layer, so a batched key gives a batched
result, and consists of operators that all layers below support.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers import random
from torchlayers.core import operator_schema
from torchlayers.core.device import CPU
from torchlayers.core.errors import TransformError, location
from torchlayers.core.torch_private import guards
from torchlayers.random.arguments import broadcast
from torchlayers.random.discrete import counts

Draw = Callable[..., Any]


def find_sampler(
    name: str, overload: str, args: tuple[Any, ...], kwargs: dict[str, Any], who: str
) -> Draw | None:
    """Returns the sampler for ``name.overload``; None if it draws nothing with these arguments."""
    if guards.TracingContext.try_get() is not None:  # the operator's fake run, which has no keys
        raise TransformError(
            f"torchlayers: {who} does not work in torch.compile, nor around what it compiles, if "
            f"that draws random numbers ({name}). Draw by keys there (torchlayers.random.normal)."
            f"{location()}"
        )
    if any(isinstance(arg, torch.Generator) for arg in (*args, *kwargs.values())):
        raise TransformError(
            f"torchlayers: {who} draws with a key, but {name} was given an explicit generator. "
            f"Leave the generator out, or draw outside.{location()}"
        )
    whole = f"{name}.{overload}" if overload else name
    if function := _DRAWS.get(whole) or _written_out(name, overload):
        return function
    if draws_nothing(name, overload, args, kwargs):
        return None
    raise TransformError(
        f"torchlayers: {who} can't draw with a key for {whole}, which has no keyed implementation. "
        "Use an operator that has one (torch.rand, randn, randint, bernoulli, multinomial, "
        f"dropout, …) or torchlayers.random.{location()}"
    )


def _written_out(name: str, overload: str) -> Draw | None:
    """Returns the sampler of an out= overload, derived from that of the functional overload."""
    base = overload.removesuffix("out").removesuffix("_")
    draw = _DRAWS.get(f"{name}.{base}" if base else name)
    if not overload.endswith("out") or draw is None:
        return None

    def written(key: Tensor, *args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        return out.copy_(draw(key, *args, **kwargs))

    return written


def draws_nothing(name: str, overload: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether dropout is off in an operator that always counts as random (attention, RNNs)."""
    schema = operator_schema.schema_of(operator_schema.overload(name, overload))
    values = {argument.name: argument.default_value for argument in schema.arguments}
    names = [argument.name for argument in schema.arguments if not argument.kwarg_only]
    values |= dict(zip(names, args, strict=False)) | kwargs
    if name == "aten::_fused_sdp_choice":  # only selects a kernel
        return True
    return (
        values.get("dropout_p", values.get("dropout")) == 0
        or values.get("train", values.get("training")) is False
    )


# Samplers for any dtype


def _on(key: Tensor, device: torch.device | None) -> Tensor:
    return key if device is None or key.device == device else key.to(device)


def _floats(
    numbers: Callable[..., Tensor], key: Tensor, size: Sequence[int], dtype: torch.dtype | None
) -> Tensor:
    dtype = dtype or torch.get_default_dtype()
    if not dtype.is_complex:
        return numbers(key, size, dtype)
    return torch.view_as_complex(numbers(key, (*size, 2), dtype.to_real()))


def _uniform(key: Tensor, size: Sequence[int], dtype: torch.dtype | None) -> Tensor:
    return _floats(random.uniform, key, size, dtype)


def _normal(key: Tensor, size: Sequence[int], dtype: torch.dtype | None) -> Tensor:
    numbers = _floats(random.normal, key, size, dtype)
    return numbers * math.sqrt(0.5) if numbers.is_complex() else numbers


def _integers(
    key: Tensor, size: Sequence[int], low: Any, high: Any, dtype: torch.dtype | None
) -> Tensor:
    return random.randint(key, size, low, high).to(dtype or torch.int64)


def _exponential(
    key: Tensor, size: Sequence[int], dtype: torch.dtype, lambd: float = 1.0
) -> Tensor:
    return random.exponential(key, size, dtype) / lambd


def _geometric(key: Tensor, size: Sequence[int], dtype: torch.dtype, p: float) -> Tensor:
    """Draws the number of trials up to and including the first success."""
    real = dtype if dtype.is_floating_point else torch.float32
    if p == 1:
        return torch.ones(size, dtype=dtype, device=key.device)
    trials = random.exponential(key, size, real) / -math.log1p(-p)
    return trials.ceil().clamp(min=1).to(dtype)


def _random_integers(key: Tensor, size: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Draws from all non-negative integers that the dtype represents exactly."""
    if dtype == torch.bool:
        end = 2
    elif dtype.is_floating_point:
        end = 2 ** round(1 - math.log2(torch.finfo(dtype).eps))
    else:
        end = min(torch.iinfo(dtype).max + 1, 2**63 - 1)
    return random.randint(key, size, 0, end).to(dtype)


def _from(
    key: Tensor, size: Sequence[int], dtype: torch.dtype, low: int, high: int | None
) -> Tensor:
    if high is None:
        high = 2**63 - 1 if dtype == torch.int64 else torch.iinfo(dtype).max + 1
    return random.randint(key, size, low, high).to(dtype)


# The operators


def _from_size(numbers: Draw) -> Draw:
    """Wraps a sampler as a factory: rand(size), randint(low, high, size)."""

    def draw(
        key: Tensor,
        *args: Any,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
    ) -> Tensor:
        if layout not in (None, torch.strided):
            raise TransformError(
                f"torchlayers: random numbers by a key are strided tensors, not {layout}."
            )
        return numbers(_on(key, device or CPU), *args, dtype=dtype)  # type: ignore[no-any-return]

    return draw


def _from_tensor_like(numbers: Draw) -> Draw:
    """Wraps a sampler as a factory from a tensor: rand_like(x), randint_like(x, low, high)."""

    def draw(
        key: Tensor,
        x: Tensor,
        *args: Any,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        memory_format: torch.memory_format | None = None,
        **options: Any,
    ) -> Tensor:
        draw = _from_size(lambda key, dtype: numbers(key, *args, x.shape, dtype=dtype))
        return draw(key, dtype=dtype or x.dtype, device=device or x.device, **options)  # type: ignore[no-any-return]

    return draw


def _out_of_place(numbers: Draw) -> Draw:
    """Wraps a sampler to return a new tensor like x: exponential(x, lambd)."""

    def draw(key: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return numbers(_on(key, x.device), x.shape, x.dtype, *args, **kwargs)  # type: ignore[no-any-return]

    return draw


def _filling(numbers: Draw) -> Draw:
    """Wraps a sampler to write into x: exponential_(x, lambd)."""

    def draw(key: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x.copy_(_out_of_place(numbers)(key, x, *args, **kwargs))

    return draw


def _uniform_between(
    key: Tensor, size: Sequence[int], dtype: torch.dtype, low: float = 0.0, high: float = 1.0
) -> Tensor:
    return random.uniform(key, size, dtype, low, high)


def _normal_around(
    key: Tensor, size: Sequence[int], dtype: torch.dtype, mean: float = 0.0, std: float = 1.0
) -> Tensor:
    return _normal(key, size, dtype) * std + mean


def _log_normal(
    key: Tensor, size: Sequence[int], dtype: torch.dtype, mean: float = 1.0, std: float = 2.0
) -> Tensor:
    return (random.normal(key, size, dtype) * std + mean).exp()


def _cauchy(
    key: Tensor, size: Sequence[int], dtype: torch.dtype, median: float = 0.0, sigma: float = 1.0
) -> Tensor:
    return random.cauchy(key, size, dtype) * sigma + median


def _bernoulli(key: Tensor, size: Sequence[int], dtype: torch.dtype, p: Any = 0.5) -> Tensor:
    return random.bernoulli(key, p, size).to(dtype)


def _normal_of(key: Tensor, mean: Any, std: Any = 1.0) -> Tensor:
    like = mean if isinstance(mean, Tensor) else std
    shapes = [parameter.shape for parameter in (mean, std) if isinstance(parameter, Tensor)]
    numbers = _normal(_on(key, like.device), broadcast(shapes), like.dtype)
    # torch.normal has no derivative by its parameters, inside a transform and around it alike.
    mean, std = (x.detach() if isinstance(x, Tensor) else x for x in (mean, std))
    return numbers.mul(std).add(mean)


def _normal_of_size(
    key: Tensor, mean: float, std: float, size: Sequence[int], dtype: torch.dtype | None = None
) -> Tensor:
    return _normal(key, size, dtype) * std + mean


def _multinomial(
    key: Tensor, weights: Tensor, num_samples: int, replacement: bool = False
) -> Tensor:
    key, logits = _on(key, weights.device), weights.log()
    if not replacement:
        numbers = logits + random.gumbel(key, logits.shape, logits.dtype)
        return numbers.topk(num_samples, dim=-1).indices
    *outer, _ = weights.shape
    return random.categorical(key, logits.unsqueeze(-2), shape=(*outer, num_samples))


def _dropout(key: Tensor, x: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = random.bernoulli(_on(key, x.device), 1 - p, x.shape)
    return x * mask * (1 / (1 - p) if p < 1 else 0.0), mask


def _rrelu(
    key: Tensor,
    x: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: None = None,
) -> Tensor:
    slopes = random.uniform(_on(key, x.device), x.shape, x.dtype, lower, upper)
    slopes = torch.where(x <= 0, slopes, torch.ones_like(slopes))
    noise.copy_(slopes)
    return x * slopes


def _gamma(key: Tensor, alpha: Tensor, generator: None = None) -> Tensor:
    return random.gamma(_on(key, alpha.device), alpha)


def _dirichlet(key: Tensor, alpha: Tensor, generator: None = None) -> Tensor:
    return random.dirichlet(_on(key, alpha.device), alpha)


def _poisson(key: Tensor, rate: Tensor, generator: None = None) -> Tensor:
    return counts("poisson", _on(key, rate.device), rate.shape, rate=rate).to(rate.dtype)


def _binomial(key: Tensor, count: Tensor, prob: Tensor, generator: None = None) -> Tensor:
    size = broadcast([count.shape, prob.shape])
    numbers = counts("binomial", _on(key, count.device), size, count=count, prob=prob)
    return numbers.to(count.dtype)


def _in_place(name: str) -> str:
    base, _, overload = name.partition(".")
    return f"{base}_.{overload}" if overload else f"{base}_"


def _functional(name: str) -> str:
    return "normal_functional" if name == "normal" else name


_OF_TENSORS: dict[str, Draw] = {
    "uniform": _uniform_between,
    "normal": _normal_around,
    "log_normal": _log_normal,
    "cauchy": _cauchy,
    "exponential": _exponential,
    "geometric": _geometric,
    "random": _random_integers,
    "random.to": lambda key, size, dtype, high: _from(key, size, dtype, 0, high),
    "random.from": lambda key, size, dtype, low, high=None: _from(key, size, dtype, low, high),
}

_NAMED: dict[str, Draw] = {
    "rand": _from_size(_uniform),
    "randn": _from_size(_normal),
    "randint": _from_size(lambda key, high, size, dtype: _integers(key, size, 0, high, dtype)),
    "randint.low": _from_size(
        lambda key, low, high, size, dtype: _integers(key, size, low, high, dtype)
    ),
    "randperm": _from_size(
        lambda key, n, dtype: random.permutation(key, n).to(dtype or torch.int64)
    ),
    "normal.float_float": _from_size(_normal_of_size),
    "rand_like": _from_tensor_like(_uniform),
    "randn_like": _from_tensor_like(_normal),
    "randint_like": _from_tensor_like(
        lambda key, high, size, dtype: _integers(key, size, 0, high, dtype)
    ),
    "randint_like.Tensor": _from_tensor_like(
        lambda key, high, size, dtype: _integers(key, size, 0, high, dtype)
    ),
    "randint_like.low_dtype": _from_tensor_like(
        lambda key, low, high, size, dtype: _integers(key, size, low, high, dtype)
    ),
    **{_functional(name): _out_of_place(draw) for name, draw in _OF_TENSORS.items()},
    **{_in_place(name): _filling(draw) for name, draw in _OF_TENSORS.items()},
    "bernoulli_.float": _filling(_bernoulli),
    "bernoulli_.Tensor": _filling(_bernoulli),
    "bernoulli.p": _out_of_place(_bernoulli),
    "bernoulli.Tensor": _out_of_place(_bernoulli),
    "bernoulli": lambda key, p: random.bernoulli(_on(key, p.device), p, p.shape).to(p.dtype),
    "normal.Tensor_float": _normal_of,
    "normal.float_Tensor": _normal_of,
    "normal.Tensor_Tensor": _normal_of,
    "multinomial": _multinomial,
    "native_dropout": _dropout,
    "_fused_dropout": lambda key, x, p, generator=None: _dropout(key, x, 1 - p),  # p: keep rate
    "rrelu_with_noise": _rrelu,
    "_standard_gamma": _gamma,
    "_sample_dirichlet": _dirichlet,
    "poisson": _poisson,
    "binomial": _binomial,
}
_DRAWS = {f"aten::{name}": draw for name, draw in _NAMED.items()}
