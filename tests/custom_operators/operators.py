"""Operators made with torch.library, with a jvp rule and a vjp rule each."""

import torch
from torch import Tensor

import torchlayers as tl

LIBRARY = "torchlayers_rules"


def custom(name):
    return torch.library.custom_op(f"{LIBRARY}::{name}", mutates_args=())


# What each rule was called with, by mode: which tangents or cotangents exist, or a keyword.
SEEN = {"jvp": [], "vjp": []}


def present(values):
    return tuple(value is not None for value in values)


@custom("cube")
def cube(x: Tensor) -> Tensor:
    return x**3


@tl.extend.jvp_rule(cube)
def cube_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return cube(x), 3 * x**2 * t


@tl.extend.vjp_rule(cube)
def cube_vjp(g, primals, result):
    return 3 * primals[0] ** 2 * g


@cube.register_vmap
def cube_vmap(info, in_dims, x):
    return cube(x), in_dims[0]


# It has no batching rule: vmap runs it sample by sample.
@custom("weighed")
def weighed(x: Tensor, y: Tensor, *, scale: float) -> Tensor:
    return scale * x * y


@tl.extend.jvp_rule(weighed)
def weighed_jvp(primals, tangents, *, scale):
    SEEN["jvp"].append(present(tangents))
    (x, y), (tx, ty) = primals, tangents
    terms = [tx * y] if tx is not None else []
    terms += [x * ty] if ty is not None else []
    return weighed(x, y, scale=scale), scale * sum(terms)


@tl.extend.vjp_rule(weighed)
def weighed_vjp(g, primals, result, *, scale):
    SEEN["vjp"].append(scale)
    x, y = primals
    return scale * g * y, scale * g * x


@custom("sine_and_cosine")
def sine_and_cosine(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin(), x.cos()


@tl.extend.jvp_rule(sine_and_cosine)
def sine_and_cosine_jvp(primals, tangents):
    (t,) = tangents
    sine, cosine = sine_and_cosine(*primals)
    return (sine, cosine), (t * cosine, -t * sine)


@tl.extend.vjp_rule(sine_and_cosine)
def sine_and_cosine_vjp(cotangents, primals, results):
    SEEN["vjp"].append(present(cotangents))
    sine, cosine = results
    by_sine, by_cosine = cotangents
    terms = [by_sine * cosine] if by_sine is not None else []
    terms += [-by_cosine * sine] if by_cosine is not None else []
    return (sum(terms),)


@custom("product_of_list")
def product_of_list(xs: list[Tensor], power: int) -> Tensor:
    return torch.stack(xs).prod(0) ** power


@tl.extend.jvp_rule(torch.ops.torchlayers_rules.product_of_list)
def product_of_list_jvp(primals, tangents):
    (xs, power), (ts, none) = primals, tangents
    assert none is None
    SEEN["jvp"].append(present(ts))
    y = product_of_list(xs, power)
    return y, sum(power * y / x * t for x, t in zip(xs, ts, strict=True) if t is not None)


@tl.extend.vjp_rule(torch.ops.torchlayers_rules.product_of_list)
def product_of_list_vjp(g, primals, result):
    xs, power = primals
    return [power * result / x * g for x in xs], None


# torch's loop over samples does not support lists.
@product_of_list.register_vmap
def product_of_list_vmap(info, in_dims, xs, power):
    batches = [
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(xs, in_dims[0], strict=True)
    ]
    return product_of_list(batches, power), 0


@custom("powers")
def powers(x: Tensor) -> list[Tensor]:
    return [x * 1, x**2, x**3]


@tl.extend.jvp_rule(powers)
def powers_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return powers(x), [t, 2 * x * t, 3 * x**2 * t]


@tl.extend.vjp_rule(powers)
def powers_vjp(cotangents, primals, results):
    SEEN["vjp"].append(present(cotangents))
    (x,) = primals
    factors = 1, 2 * x, 3 * x**2
    return sum(g * f for g, f in zip(cotangents, factors, strict=True) if g is not None)


@powers.register_vmap
def powers_vmap(info, in_dims, x):
    return powers(x), [in_dims[0]] * 3


@custom("value_and_argmax")
def value_and_argmax(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.max(), x.argmax()


@tl.extend.jvp_rule(value_and_argmax)
def value_and_argmax_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    value, place = value_and_argmax(x)
    return (value, place), (t.gather(0, place[None])[0], None)


@tl.extend.vjp_rule(value_and_argmax)
def value_and_argmax_vjp(cotangents, primals, results):
    g, none = cotangents
    assert none is None
    return torch.zeros_like(primals[0]).scatter(0, results[1][None], g[None])


@custom("scaled")
def scaled(x: Tensor, factor: float, shift: Tensor | None = None) -> Tensor:
    return x * factor + (0 if shift is None else shift)


@tl.extend.jvp_rule(scaled)
def scaled_jvp(primals, tangents):
    (_, factor, *_), (t, none, *shifts) = primals, tangents
    assert none is None
    return scaled(*primals), t * factor + sum(shift for shift in shifts if shift is not None)


@tl.extend.vjp_rule(scaled)
def scaled_vjp(g, primals, result):
    _, factor, shift = primals
    return g * factor, None, None if shift is None else g


@custom("one")
def one(x: Tensor) -> Tensor:
    return x * 2


@custom("two")
def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * y, x + y


@custom("many")
def many(x: Tensor) -> list[Tensor]:
    return [x * 2, x * 3]


@custom("of_list")
def of_list(xs: list[Tensor]) -> Tensor:
    return xs[0] * xs[1]
