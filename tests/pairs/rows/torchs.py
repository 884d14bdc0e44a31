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


@row("writes through complex views", lambda x: torch.stack([x[0] * x[1], x[1], x[2], x[3] * x[1]]))
def _(x):
    y = x.clone()
    pairs = torch.view_as_real(torch.view_as_complex(y.view(2, 2)))
    pairs[0, 0].mul_(x[1])
    pairs[1, 1].mul_(x[1])
    return y


@row("writes through view(dtype)", lambda x: torch.stack([x[0] * x[1], x[1], x[2], x[3] * x[2]]))
def _(x):
    y = x.clone()
    numbers = y.view(torch.complex128)
    numbers.view(torch.float64)[0].mul_(x[1])
    y.view(torch.float64)[3].mul_(x[2])
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


# ---- autograd's state, and Python's


@row("a hook on several gradients", lambda x: x.sin() * x.cos())
def _(x):
    sin, cos = x.sin(), x.cos()
    if sin.requires_grad:
        torch.autograd.graph.register_multi_grad_hook((sin, cos), lambda gradients: None)
    return sin * cos


SCALER = torch.amp.GradScaler("cpu", init_scale=1024.0)


@row("a scaled loss", lambda x: x.sin() * x * 1024)
def _(x):
    return SCALER.scale(x.sin() * x)


@row("a growing list", lambda x: sum((x * (i + 1)).sin() * x**i for i in range(3)))
def _(x):
    terms = [x.sin()]
    while len(terms) < 3:
        terms.append((x * (len(terms) + 1)).sin() * x ** len(terms))
    return torch.stack(terms).sum(0)


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


@row("sorting", lambda x: x.square())
def _(x):
    values, places = x.square().sort()
    return torch.zeros_like(x).scatter(0, places, values)


@row("normalize", lambda x: x / (x * x).sum().sqrt())
def _(x):
    return F.normalize(x, dim=0)


@row("layer norm", lambda x: (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt())
def _(x):
    return F.layer_norm(x, (4,))


KERNEL = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)


def _as_convolution(x):
    padded = F.pad(x.sin(), (1, 1))
    return sum(KERNEL[i] * padded[i : i + 4] for i in range(3))


@row("convolution", _as_convolution)
def _(x):
    return F.conv1d(x.sin()[None, None], KERNEL[None, None], padding=1)[0, 0]


def _as_bags(x):
    rows, weights = x.sin().reshape(2, 2), x[:3]
    first = rows[0] * weights[0] + rows[1] * weights[1]
    return torch.cat([first, rows[1] * weights[2]])


@row("embedding bags", _as_bags)
def _(x):
    where = torch.tensor([0, 1, 1]), torch.tensor([0, 2])
    rows = x.sin().reshape(2, 2)
    return F.embedding_bag(where[0], rows, where[1], mode="sum", per_sample_weights=x[:3]).reshape(
        4
    )


def _as_alignments(x):
    first, second = x.reshape(2, 2).log_softmax(-1)
    paths = [first[1] + second[1], first[0] + second[1], first[1] + second[0]]
    return -torch.stack(paths).logsumexp(0) * x


@row("ctc_loss", _as_alignments)
def _(x):
    series = x.reshape(2, 1, 2).log_softmax(-1)
    return F.ctc_loss(series, torch.tensor([[1]]), (2,), (1,), reduction="sum") * x


def _as_renorm(x):
    rows = x.reshape(2, 2)
    sizes = rows.square().sum(1, keepdim=True).sqrt()
    return torch.where(sizes > 0.5, rows * 0.5 / (sizes + 1e-7), rows).reshape(4)


@row("renorm", _as_renorm)
def _(x):
    return x.reshape(2, 2).renorm(2, 0, 0.5).reshape(4)


def _stirling(x):
    """Its asymptotic series at x + 10, and the recurrence back to x."""
    z = x + 10
    tail = 1 / (12 * z) - 1 / (360 * z**3) + 1 / (1260 * z**5) - 1 / (1680 * z**7)
    far = (z - 0.5) * z.log() - z + 0.5 * math.log(2 * math.pi) + tail
    return far - sum((x + i).log() for i in range(10))


@row("log-gamma", lambda x: _stirling(x.square() + 0.5))
def _(x):
    return torch.lgamma(x.square() + 0.5)


def _covariance(x):
    return torch.stack([x[0].square() + 3, x[1].sin(), x[1].sin(), x[3].exp() + 2]).reshape(2, 2)


def _as_normal(x):
    (a, b), (_, d) = _covariance(x)
    volume = a * d - b * b
    distance = (d * x[0] * x[0] - 2 * b * x[0] * x[1] + a * x[1] * x[1]) / volume
    return (-distance / 2 - volume.log() / 2 - math.log(2 * math.pi)) * x


@row("multivariate normal", _as_normal)
def _(x):
    normal = torch.distributions.MultivariateNormal(torch.zeros(2).double(), _covariance(x))
    return normal.log_prob(x[:2]) * x


@row("one_hot", lambda x: torch.where(x == x.amax(), x.sin(), 0))
def _(x):
    return F.one_hot(x.argmax(), 4) * x.sin()


# ---- recurrent networks


def _filled(network):
    with torch.no_grad():
        for parameter in network.parameters():
            count = parameter.numel()
            parameter.copy_(torch.linspace(-0.9, 1.1, count).double().sin().view_as(parameter))
    return network.requires_grad_(requires_grad=False)


GRU, LSTM = _filled(nn.GRU(2, 2).double()), _filled(nn.LSTM(2, 2).double())


def _gates(network, x, h, parts):
    of_x = network.weight_ih_l0 @ x + network.bias_ih_l0
    of_h = network.weight_hh_l0 @ h + network.bias_hh_l0
    return of_x.reshape(parts, 2), of_h.reshape(parts, 2)


def _as_gru(x):
    h, outputs = torch.zeros(2, dtype=torch.float64), []
    for step in x.reshape(2, 2):
        of_x, of_h = _gates(GRU, step, h, 3)
        reset, update = (of_x[:2] + of_h[:2]).sigmoid()
        new = (of_x[2] + reset * of_h[2]).tanh()
        h = (1 - update) * new + update * h
        outputs.append(h)
    return torch.cat(outputs)


@row("GRU", _as_gru)
def _(x):
    return GRU(x.reshape(2, 1, 2))[0].reshape(4)


def _as_lstm(x):
    h = c = torch.zeros(2, dtype=torch.float64)
    outputs = []
    for step in x.reshape(2, 2):
        of_x, of_h = _gates(LSTM, step, h, 4)
        enter, forget, new, leave = of_x + of_h
        c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
        h = leave.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.cat(outputs)


@row("LSTM", _as_lstm)
def _(x):
    return LSTM(x.reshape(2, 1, 2))[0].reshape(4)
