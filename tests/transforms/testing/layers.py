"""Layers to check: one that is a derivative, and one of bounds. Rules can be replaced by faults."""

import torch

import torchlayers as tl

aten = torch.ops.aten


class Dual(tl.Layer):
    """Forward mode: the parts are a tangent, None for zero."""


def tangent(x):
    return torch.zeros_like(x.value) if x.parts is None else x.parts


@Dual.rule(aten.mul.Tensor)
def mul(layer, op, x, y):
    return layer.tensor(x.value * y.value, tangent(x) * y.value + x.value * tangent(y))


@Dual.rule(aten.add.Tensor)
def add(layer, op, x, y, *, alpha=1):
    value = torch.add(x.value, y.value, alpha=alpha)
    return layer.tensor(value, torch.add(tangent(x), tangent(y), alpha=alpha))


@Dual.rule(aten.sin)
def sin(layer, op, x):
    return layer.tensor(x.value.sin(), x.parts * x.value.cos())


@Dual.rule(aten.cos)
def cos(layer, op, x):
    return layer.tensor(x.value.cos(), -x.parts * x.value.sin())


@Dual.rule(aten.neg)
def neg(layer, op, x):
    return layer.tensor(-x.value, -x.parts)


@Dual.rule(aten.sum.dim_IntList)
def total(layer, op, x, dim, keepdim=False, *, dtype=None):
    return layer.tensor(*(y.sum(dim, keepdim, dtype=dtype) for y in (x.value, x.parts)))


@Dual.rule(aten.max.dim)
def largest(layer, op, x, dim, keepdim=False):
    value, index = x.value.max(dim, True)
    parts = x.parts.gather(dim, index)
    if not keepdim:
        value, parts, index = (y.squeeze(dim) for y in (value, parts, index))
    return layer.tensor(value, parts), index


def derivative(f, values, tangents):
    """The meaning of Dual."""
    return tl.jvp(f, values, tangents)[1]


def random_tangent(value, generator):
    return torch.randn(value.shape, generator=generator, dtype=value.dtype)


class Derivatives:
    """Parts that are no pytree: rows of a Jacobian, (k, *shape), and a Laplacian."""

    def __init__(self, rows, laplacian):
        self.rows, self.laplacian = rows, laplacian


class Laplacian(tl.Layer):
    """The forward Laplacian."""


@Laplacian.rule(aten.mul.Tensor)
def mul_laplacian(layer, op, x, y):
    value = x.value * y.value
    if x.parts is None or y.parts is None:
        x, y = (x, y) if y.parts is None else (y, x)
        spread = torch.ones_like(value)
        rows = torch.stack([row * y.value * spread for row in x.parts.rows.unbind()])
        return layer.tensor(value, Derivatives(rows, x.parts.laplacian * y.value * spread))
    pairs = [*zip(x.parts.rows.unbind(), y.parts.rows.unbind(), strict=True)]
    rows = torch.stack([a * y.value + x.value * b for a, b in pairs])
    laplacian = x.parts.laplacian * y.value + x.value * y.parts.laplacian
    return layer.tensor(value, Derivatives(rows, laplacian + 2 * sum(a * b for a, b in pairs)))


@Laplacian.rule(aten.sin)
def sin_laplacian(layer, op, x):
    slope, curvature = x.value.cos(), -x.value.sin()
    squares = (x.parts.rows**2).sum(0)
    laplacian = slope * x.parts.laplacian + curvature * squares
    return layer.tensor(x.value.sin(), Derivatives(slope * x.parts.rows, laplacian))


def laplacian(f, values, parts):
    """The meaning of Laplacian: Df J[i], and Df L + the sum of D2f[J[i], J[i]]."""

    def slope(values, rows):
        return tl.jvp(f, values, rows)[1]

    rows, total = [], tl.jvp(f, values, tuple(part[1] for part in parts))[1]
    for i in range(2):
        row = tuple(part[0][i] for part in parts)
        rows.append(slope(values, row))
        total = total + tl.jvp(lambda *at, row=row: slope(at, row), values, row)[1]
    return torch.stack(rows), total


def random_derivatives(value, generator):
    drawn = torch.randn((3, *value.shape), generator=generator, dtype=value.dtype)
    return drawn[:2].clone(), drawn[2].clone()


class Interval(tl.Layer):
    """The parts are bounds, lower and upper; those of a constant are its value."""


def bounds(x):
    return (x.value, x.value) if x.parts is None else x.parts


@Interval.rule(aten.add.Tensor)
def add_bounds(layer, op, x, y, *, alpha=1):
    (a, b), (c, d) = bounds(x), bounds(y)
    c, d = (c, d) if alpha >= 0 else (d, c)
    value = torch.add(x.value, y.value, alpha=alpha)
    return layer.tensor(value, (torch.add(a, c, alpha=alpha), torch.add(b, d, alpha=alpha)))


@Interval.rule(aten.neg)
def neg_bounds(layer, op, x):
    lower, upper = x.parts
    return layer.tensor(-x.value, (-upper, -lower))


@Interval.rule(aten.exp)
def exp_bounds(layer, op, x):
    lower, upper = x.parts
    return layer.tensor(x.value.exp(), (lower.exp(), upper.exp()))


def random_bounds(value, generator):
    below, above = (torch.rand(value.shape, generator=generator).to(value) for _ in range(2))
    return value - below, value + above


def bounds_hold(f, values, parts, results):
    """The operator's results at points within the bounds are within the results' bounds."""
    for weight in (0.0, 0.25, 1.0):
        points = [torch.lerp(lower, upper, weight) for lower, upper in parts]
        found = f(*points)
        for y, result in zip(found if isinstance(found, tuple) else (found,), results, strict=True):
            lower, upper = bounds(result)
            slack = 1e-9 * (1 + y.abs())
            if not bool(((lower - slack <= y) & (y <= upper + slack) | y.isnan()).all()):
                return f"a value outside its bounds at weight {weight}"
    return None


def with_rule(layer, *ops):
    """Decorator: the layer's class with a rule replaced, as a subclass of the same name."""

    def replace(rule):
        changed = type(layer.__name__, (layer,), {})
        changed.rule(*ops)(rule)
        return changed

    return replace
