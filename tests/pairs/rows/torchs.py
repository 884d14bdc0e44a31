"""Rows of the table of pairs: what torch has, and programs are made of."""

import math

import torch
import torch.nn.functional as F
from torch import nn

import torchlayers as tl
from tests.pairs.rows.table import MATRIX, row

# ---- writes


@row("writes in place", lambda x: torch.cat([x[1:2] * 2, x[1:] * x[1:].sin()]))
def _(x):
    y = x.clone()
    y.mul_(x.sin())
    y[0] = x[1] * 2
    return y


@row("writes through views", lambda x: torch.stack([x[0] * x[1], x[1], x[2] * x[3], x[3]]))
def _(x):
    y = x.clone()
    y.view(2, 2)[:, 0].mul_(x.view(2, 2)[:, 1])
    return y


def _by_a_constant(x):
    with torch.no_grad():  # a constant to reverse mode alone
        size = x.norm()
    return x / size


@row("writes under no_grad", _by_a_constant)
def _(x):
    with torch.no_grad():
        size = torch.ones_like(x)
        size.mul_(x.norm())
    return x / size


@row("writes by a mask", lambda x: torch.where(x > 0.6, x * x, 0))
def _(x):
    y = x * x
    y[x <= 0.6] = 0
    return y


# ---- modules


class Affine(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(MATRIX.clone())

    def forward(self, x):
        return self.weight @ x.sin()


AFFINE = Affine()


@row("functional_call", lambda x: (MATRIX * x) @ x.sin())
def _(x):
    return tl.functional_call(AFFINE, {"weight": MATRIX * x}, (x,))


@row("functional", lambda x: (MATRIX * x) @ x.sin())
def _(x):
    f, _, buffers = tl.functional(AFFINE)
    return f({"weight": MATRIX * x}, buffers, x)[0]


@row("a module that requires grad", lambda x: (MATRIX @ x.sin()) * x)
def _(x):
    return AFFINE(x) * x


@row("ensemble", lambda x: 3 * (MATRIX @ x.sin()))
def _(x):
    f, params, buffers = tl.ensemble([AFFINE, AFFINE])
    params = {"weight": params["weight"] * torch.tensor([1.0, 2.0]).view(2, 1, 1)}
    return f(params, buffers, x)[0].sum(0)


NORM = nn.BatchNorm1d(1, dtype=torch.float64, track_running_stats=False)


@row("batch norm in training", lambda x: (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt())
def _(x):
    return NORM(x[:, None])[:, 0]


# ---- compiled by torch


@torch.jit.script
def _scripted(x):
    return x.sin() * x


@row("a scripted function", lambda x: x.sin() * x)
def _(x):
    return _scripted(x)


class _Exported(nn.Module):
    def forward(self, x):
        return x.sin() * x


_exported = torch.export.export(_Exported(), (torch.ones(4, dtype=torch.float64),)).module()


@row("an exported program", lambda x: x.sin() * x)
def _(x):
    return _exported(x)


@row("a function of tl.compile", lambda x: x.sin() * x)
def _(x):
    return _replayed(x)


_replayed = tl.compile(lambda x: x.sin() * x, backend="replay")


# ---- operators


def _as_attention(x):
    queries, keys = x.reshape(2, 2), (MATRIX @ x).reshape(2, 2)
    return ((queries @ keys.T / math.sqrt(2)).softmax(-1) @ x.sin().reshape(2, 2)).reshape(4)


@row("attention", _as_attention)
def _(x):
    queries, keys, values = x, MATRIX @ x, x.sin()
    heads = (t.reshape(1, 1, 2, 2) for t in (queries, keys, values))
    return F.scaled_dot_product_attention(*heads).reshape(4)


ANGLES = 2 * math.pi / 4 * torch.outer(torch.arange(4.0), torch.arange(4.0)).double()


@row("FFT", lambda x: (ANGLES.cos() @ x.sin()).square() + (ANGLES.sin() @ x.sin()).square())
def _(x):
    return torch.fft.fft(x.sin()).abs().square()


def _symmetric(x):
    return torch.stack([x[0] + 3, x[1] * x[2], x[1] * x[2], x[3]]).reshape(2, 2)


def _closed_eigenvalues(x):
    (a, b), (_, d) = _symmetric(x)
    middle, distance = (a + d) / 2, (((a - d) / 2).square() + b * b).sqrt()
    return torch.stack([middle - distance, middle + distance])


@row("eigenvalues", lambda x: _closed_eigenvalues(x).repeat(2))
def _(x):
    return torch.linalg.eigvalsh(_symmetric(x)).repeat(2)


@row("singular values", lambda x: _closed_eigenvalues(x).flip(0).repeat(2))
def _(x):
    return torch.linalg.svdvals(_symmetric(x)).repeat(2)


def _closed_cholesky(x):
    (a, b), (_, d) = _symmetric(x)
    first = a.sqrt()
    return torch.stack([first, torch.zeros_like(a), b / first, (d - b * b / a).sqrt()])


@row("Cholesky", _closed_cholesky)
def _(x):
    return torch.linalg.cholesky(_symmetric(x)).reshape(4)


def _closed_solution(x):
    (a, b), (_, d) = _symmetric(x)
    return (torch.stack([d * x[0] - b * x[1], a * x[1] - b * x[0]]) / (a * d - b * b)).repeat(2)


@row("linear systems", _closed_solution)
def _(x):
    return torch.linalg.solve(_symmetric(x), x[:2]).repeat(2)


@row("determinants", lambda x: ((x[0] + 3) * x[3] - (x[1] * x[2]).square()).log() * x)
def _(x):
    return torch.linalg.slogdet(_symmetric(x))[1] * x


@row("sorting", lambda x: x.square())
def _(x):
    values, places = x.square().sort()
    return torch.zeros_like(x).scatter(0, places, values)


@row("normalize", lambda x: x / (x * x).sum().sqrt())
def _(x):
    return F.normalize(x, dim=0)
