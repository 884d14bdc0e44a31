"""Rows of the table of pairs: what torchlayers adds to torch."""

import types

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import torchlayers as tl
from tests.pairs.rows.table import MATRIX, row
from torchlayers import checkpoint_policies as policies
from torchlayers import debug, distributed, implicit, random


def body(x: Tensor) -> Tensor:
    return (MATRIX @ x.sin()) * x


# ---- control flow


@row("cond", lambda x: torch.where(x.sum() > 1, x.sin() * x, x.cos()))
def _(x):
    return tl.cond(x.sum() > 1, lambda x: x.sin() * x, lambda x: x.cos(), x)


@row("a branch on a value", lambda x: torch.where(x.sum() > 1, x.sin() * x, x.cos()))
def _(x):
    return x.sin() * x if x.sum() > 1 else x.cos()


@row("a number of a tensor", lambda x: x.sin() * x.detach().sum())
def _(x):
    return x.sin() * x.sum().item()


@row("switch", lambda x: torch.where(x[0] > 0.5, x.exp(), x.sin()))
def _(x):
    return tl.switch((x[0] > 0.5).long(), [torch.sin, torch.exp], x)


def _scanned(x):
    total = torch.zeros_like(x)
    for factors in MATRIX:
        x, total = (x * factors).sin() + x, total + x * x
    return x + total


@row("scan", _scanned)
def _(x):
    last, squares = tl.scan(lambda x, row: ((x * row).sin() + x, x * x), x, MATRIX)
    return last + squares.sum(0)


@row("scan, checkpointed", _scanned)
def _(x):
    step = lambda x, row: ((x * row).sin() + x, x * x)  # noqa: E731
    last, squares = tl.scan(step, x, MATRIX, checkpoint=True)
    return last + squares.sum(0)


def _thrice(x):
    y = x
    for _ in range(3):
        y = y.sin() * x
    return y


@row("while_loop", _thrice)
def _(x):
    start = (torch.tensor(0), x)
    return tl.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1].sin() * x), start)[1]


@row("fori_loop", _thrice)
def _(x):
    return tl.fori_loop(0, 3, lambda i, y: y.sin() * x, x)


@row("map", lambda x: (MATRIX * x).sin().sum(1))
def _(x):
    return tl.map(lambda row: (row * x).sin().sum(), MATRIX)


@row("associative_scan", lambda x: torch.stack([x[: i + 1].prod() for i in range(4)]))
def _(x):
    return tl.associative_scan(torch.mul, x)


# ---- state of Python

_SEEN = types.SimpleNamespace(last=None, steps=0)


@row("a stored tensor and a counter", body)
def _(x):
    _SEEN.steps += 1
    _SEEN.last = x * 2
    return body(x)


# ---- recomputation


@row("checkpoint", body)
def _(x):
    return tl.checkpoint(body)(x)


@row("checkpoint, by a policy", body)
def _(x):
    return tl.checkpoint(body, policies.dots_saveable)(x)


@row("checkpoint, offloaded by a policy", body)
def _(x):
    return tl.checkpoint(body, policies.offload_dot_with_no_batch_dims)(x)


def _written(x):
    y = MATRIX @ x
    return y.mul_(x.sin()) * y


@row("checkpoint of a write, by a policy", lambda x: ((MATRIX @ x) * x.sin()).square())
def _(x):
    return tl.checkpoint(_written, policies.dots_saveable)(x)


def _replaced_state(x):
    h = x
    for _ in range(2):
        h = MATRIX @ h.sin() * x
    return h


@row("checkpoint of a state that a loop replaces", _replaced_state)
def _(x):
    state = {"h": x}
    for _ in range(2):
        state["h"] = tl.checkpoint(lambda x: F.linear(state["h"].sin(), MATRIX) * x)(x)
    return state["h"]


@row("torch's checkpoint", body)
def _(x):
    return torch_checkpoint(body, x, use_reentrant=False)


SCALES = (0.5, 1.0, 1.5, 2.0)


def _squares(x):
    return sum((MATRIX @ (x * scale).sin().square()).sum() for scale in SCALES)


@row(
    "grad, by a memory budget",
    lambda x: sum(scale * (2 * scale * x).sin() for scale in SCALES) * MATRIX.sum(0),
)
def _(x):
    return tl.grad(_squares, memory_budget=0.8)(x)


# ---- derivatives of one's own


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.saved_tensors[0].cos()

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * ctx.saved_tensors[0].cos()

    @staticmethod
    def vmap(info, in_dims, x):
        return Sine.apply(x), in_dims[0]


class OldSine(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * x.cos()


@row("autograd.Function", lambda x: x.sin() * x)
def _(x):
    return Sine.apply(x) * x


@row("autograd.Function of the old style", lambda x: x.sin() * x)
def _(x):
    return OldSine.apply(x) * x


@row("custom_jvp", lambda x: x.sin() * x)
def _(x):
    @tl.custom_jvp
    def sine(x):
        return x.sin()

    @sine.defjvp
    def _(primals, tangents):
        return sine(*primals), tangents[0] * primals[0].cos()

    return sine(x) * x


@row("custom_vjp", lambda x: x.sin() * x)
def _(x):
    @tl.custom_vjp
    def sine(x):
        return x.sin()

    sine.defvjp(lambda x: (sine(x), x), lambda x, cotangent: (cotangent * x.cos(),))
    return sine(x) * x


@tl.custom_vmap
def _dotted(x, y):
    return (x * y).sum() * x.sin()


@_dotted.def_vmap
def _(size, dims, x, y):
    pairs = zip((x, y), dims, strict=True)
    x, y = (a if dim == 0 else a.expand(size, *a.shape) for a, dim in pairs)
    return torch.einsum("ni,ni,nj->nj", x, y, x.sin()), 0


@row("custom_vmap", lambda x: (x * x.exp()).sum() * x.sin())
def _(x):
    return _dotted(x, x.exp())


@row("sequential_vmap", body)
def _(x):
    return tl.sequential_vmap(body)(x)


@tl.custom_jvp
def _called_sine(x):
    return tl.pure_callback(lambda x: np.sin(x.numpy()), x, x)


@tl.custom_jvp
def _called_cosine(x):
    return tl.pure_callback(np.cos, x, x, vmap_method="expand_dims")


_called_sine.defjvps(lambda t, y, x: t * _called_cosine(x))
_called_cosine.defjvps(lambda t, y, x: -t * _called_sine(x))


@row("pure_callback in a custom_jvp", lambda x: x.sin() * x)
def _(x):
    return _called_sine(x) * x


@row("io_callback", lambda x: x.sin() * x)
def _(x):
    factors = tl.io_callback(lambda x: torch.ones_like(x), x, x.detach())
    return x.sin() * factors * x


@row("debug.check", body)
def _(x):
    debug.check(x.sum() > -1e9, "sum of {x}", x=x)
    return body(x)


@row("at", lambda x: torch.stack([x[1], x[3] * x[0], x[3] * 0]) @ MATRIX[:3] + x)
def _(x):
    y = tl.at(x)[torch.tensor([3, 9])].multiply(x[0], mode="drop")
    read = tl.at(y)[torch.tensor([1, 3, 5])].get(mode="fill", fill_value=0.0)
    return read @ MATRIX[:3] + x


@row("torch.autograd.grad inside", lambda x: (x + 1).cos() * x)
def _(x):
    shift = torch.ones_like(x).requires_grad_()
    with torch.enable_grad():
        total = (x + shift).sin().sum()
        return torch.autograd.grad(total, shift, create_graph=True)[0] * x


# ---- solutions


@row("custom_root", lambda x: (x.square() + 1).sqrt())
def _(x):
    return tl.custom_root(lambda y: y * y - x * x - 1, torch.ones_like(x))


@row("custom_fixed_point", lambda x: x / 0.75)
def _(x):
    return tl.custom_fixed_point(lambda y: 0.25 * y + x, torch.zeros_like(x))


@row("custom_linear_solve", lambda x: x / (x + 2))
def _(x):
    return tl.custom_linear_solve(lambda y: (x + 2) * y, x)


@row("minimize", lambda x: (x + 2).log())
def _(x):
    f = lambda y: (y.exp() - y * (x + 2)).sum()  # noqa: E731
    return implicit.minimize(f, torch.zeros_like(x)).value


@row("least_squares", lambda x: (x + 2 * x * x) / 5)
def _(x):
    return implicit.least_squares(lambda y: (y - x, 2 * y - x * x), torch.zeros_like(x)).value


@row("find_root", lambda x: (x.square() + 1).sqrt())
def _(x):
    return implicit.find_root(lambda y: y * y - x * x - 1, torch.ones_like(x)).value


@row("find_root, bracketed", lambda x: x * (2 + x.square().sum()).log())
def _(x):
    low, high = torch.zeros_like(x[0]), torch.full_like(x[0], 20.0)
    f = lambda y: y.exp() - 2 - x.square().sum()  # noqa: E731
    return x * implicit.find_root(f, bracket=(low, high)).value


@row("find_fixed_point", lambda x: x / 0.75)
def _(x):
    return implicit.find_fixed_point(lambda y: 0.25 * y + x, torch.zeros_like(x)).value


@row("linear_solve", lambda x: torch.linalg.solve(torch.diag(x + 2) + MATRIX / 9, x))
def _(x):
    return implicit.linear_solve(torch.diag(x + 2) + MATRIX / 9, x, "gmres").value


# ---- transforms inside


@row("linearize inside", lambda x: x.cos() * x)
def _(x):
    return tl.linearize(torch.sin, x)[1](x)


@row("vjp inside", lambda x: x.cos() * x)
def _(x):
    return tl.vjp(torch.sin, x)[1](x)[0]


@row("jet inside", lambda x: x.sin() + x.cos() * x - x.sin() * x * x)
def _(x):
    value, (first, second) = tl.jet(torch.sin, (x,), ((x, torch.zeros_like(x)),))
    return value + first + second


@row("laplacian inside", lambda x: -(x.sin() * MATRIX.sum(0)).sum() * x)
def _(x):
    return tl.laplacian(lambda x: (MATRIX @ x.sin()).sum())(x) * x


@row("jacobian inside", lambda x: x.cos() * MATRIX.sum(0))
def _(x):
    return tl.jacobian(lambda x: MATRIX @ x.sin())(x).sum(0)


@row("hessian of a chosen mode inside", lambda x: 6 * x.sum() ** 2 - x.sin() * x)
def _(x):
    return tl.hessian(lambda y: y.sum() ** 3 + y.sin().sum(), mode="auto")(x) @ x


@row("hessian_diagonal inside", lambda x: -x.sin() * MATRIX.sum(0))
def _(x):
    return tl.hessian_diagonal(lambda x: (MATRIX @ x.sin()).sum())(x)


@row("a sparse Jacobian inside", lambda x: x.cos() * x.roll(1) + x)
def _(x):
    jacobian = tl.jacfwd(torch.sin, sparse=True)(x)
    return jacobian.to_dense() @ x.roll(1) + x


@row("functionalize inside", lambda x: x.sin() * x)
def _(x):
    return tl.functionalize(lambda x: x.sin().mul_(x))(x)


@row("linear_transpose", lambda x: MATRIX.T @ x.sin())
def _(x):
    return tl.linear_transpose(lambda v: MATRIX @ v, x)(x.sin())[0]


# ---- values inside, random numbers, names of samples


@row("grad by taps", lambda x: 2 * x.sin() + x.cos())
def _(x):
    def total(x):
        return tl.tap(x.sin(), "sine").square().sum()

    gradient, by_name = tl.grad(total, taps="sine")(x)
    return by_name["sine"] + gradient / (2 * x.sin())


@row("intermediates", lambda x: x.sin() * x)
def _(x):
    return tl.intermediates(lambda x: tl.tap(x.sin(), "sine").sum())(x)["sine"] * x


NOISE = random.normal(random.key(3), (4,), dtype=torch.float64)


@row("keyed random numbers", lambda x: x.sin() * NOISE)
def _(x):
    return x.sin() * random.normal(random.key(3), (4,), dtype=torch.float64)


KEPT = tl.seeded(lambda: torch.rand(4, dtype=torch.float64), random.key(5))()


@row("seeded", lambda x: x.sin() * KEPT)
def _(x):
    return x.sin() * tl.seeded(lambda: torch.rand(4, dtype=torch.float64), random.key(5))()


@row("named samples", lambda x: (MATRIX / MATRIX.sum(0)).sum(1) * x)
def _(x):
    share = tl.vmap(lambda row: row / distributed.psum(row, "rows"), axis_name="rows")
    return share(MATRIX).sum(1) * x


@row(
    "collectives of named samples",
    lambda x: MATRIX.sum(0) * x.sin() + (MATRIX @ x.exp()).sum() / 4 + (MATRIX @ x).roll(1),
)
def _(x):
    def share(row):
        own_part = distributed.psum_scatter(row * x.sin(), "rows")
        mean = distributed.all_gather(row @ x.exp(), "rows").sum() / distributed.axis_size("rows")
        following = distributed.ppermute(row @ x, "rows", [(i, (i + 1) % 4) for i in range(4)])
        return own_part + mean + following

    return tl.vmap(share, axis_name="rows")(MATRIX)
