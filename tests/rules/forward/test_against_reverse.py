"""Operators that torch.func.jvp rejects: tangents against reverse mode, and Hessian-vector products
against differences of gradients."""

import pytest
import torch
import torch.func
import torch.nn.functional as F
from torch import nn

import torchlayers as tl
from tests.support.derivatives import central_difference, pairing, plain, tangents_of

# torch.func's derivatives, and our jvp without a formula, run some batches sample by sample.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


def randn(*sizes):
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(sizes, generator=generator, dtype=torch.float64)


def module(made):
    """A module with the same float64 parameters in every run."""
    generator = torch.Generator().manual_seed(5)
    made = made.double()
    for parameter in made.parameters():
        parameter.data.normal_(std=0.5, generator=generator)
    return made


A, B = randn(3, 2), randn(2, 3).t()
Q, K, V = randn(2, 2, 5, 4), randn(2, 2, 6, 4), randn(2, 2, 6, 4)
KEEP = randn(5, 6) > -0.5
KEEP[:, 0] = True


def attention(**options):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


CASES = {
    "attention": (attention(), Q, K, V),
    "attention, 3 dimensions": (attention(), Q[0], K[0], V[0]),
    "attention, causal": (attention(is_causal=True), Q, K, V),
    "attention, scaled": (attention(scale=0.3), Q, K, V),
    "attention, bool mask": (attention(attn_mask=KEEP), Q, K, V),
    "attention, float mask": (attention(attn_mask=randn(5, 6), scale=0.3), Q, K, V),
    "attention, a mask that varies": (
        lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        *(Q, K, V, randn(5, 6)),
    ),
    "attention, only the query varies": (lambda q: F.scaled_dot_product_attention(q, K, V), Q),
    "FFT convolution": (
        lambda x, k: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(k, n=8), n=8),
        *(randn(3, 8), randn(3, 4)),
    ),
    "pdist": (F.pdist, randn(4, 3)),
    "embedding_bag, sum": (
        lambda w: F.embedding_bag(torch.tensor([[0, 1], [2, 1]]), w, mode="sum"),
        randn(4, 3),
    ),
    "embedding_bag, mean, offsets": (
        lambda w: F.embedding_bag(torch.tensor([0, 1, 2, 1]), w, torch.tensor([0, 3])),
        randn(4, 3),
    ),
    "embedding_bag, max": (
        lambda w: F.embedding_bag(torch.tensor([[0, 1], [2, 1]]), w, mode="max"),
        randn(4, 3),
    ),
    "embedding_bag, sample weights": (
        lambda w, s: F.embedding_bag(
            torch.tensor([[0, 1], [2, 1]]), w, mode="sum", per_sample_weights=s
        ),
        *(randn(4, 3), randn(2, 2)),
    ),
    "soft_margin_loss": (lambda x: F.soft_margin_loss(x, randn(4, 3).sign()), randn(4, 3)),
    "huber_loss": (lambda x, y: F.huber_loss(x, y, delta=0.7), randn(4, 3), randn(3, 4).t()),
}
CASES |= {
    f"cdist, p={p}": (lambda a, b, p=p: torch.cdist(a, b, p), randn(3, 2), randn(4, 2))
    for p in (0.0, 1.0, 1.5, 2.0, 3.0, float("inf"))
}
CASES |= {
    f"grid_sample, {dims}-d, {mode}, {padding}, align_corners={align}": (
        lambda image, grid, options=(mode, padding, align): F.grid_sample(image, grid, *options),
        randn(2, 3, *range(4, 2 + dims)),
        torch.tanh(randn(2, *[3] * (dims - 2), dims - 2)) * 1.2,
    )
    for dims, modes in ((4, ("bilinear", "nearest", "bicubic")), (5, ("bilinear", "nearest")))
    for mode in modes
    for padding in ("zeros", "border", "reflection")
    for align in (False, True)
}


MODULES = {
    "multi-head attention": (
        lambda: module(nn.MultiheadAttention(8, 2, batch_first=True)),
        lambda m, x: m(x, x, x, need_weights=False)[0],
        (2, 5, 8),
    ),
    "multi-head attention with weights": (
        lambda: module(nn.MultiheadAttention(8, 2, batch_first=True)),
        lambda m, x: m(x, x, x)[1],
        (2, 5, 8),
    ),
    "transformer block in train": (
        lambda: module(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)),
        lambda m, x: m(x),
        (2, 5, 8),
    ),
    "transformer block in eval": (
        lambda: module(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval(),
        lambda m, x: m(x),
        (2, 5, 8),
    ),
    "GRU": (
        lambda: module(nn.GRU(4, 3, 2, batch_first=True, bidirectional=True)),
        lambda m, x: m(x)[0],
        (2, 5, 4),
    ),
    "LSTM": (
        lambda: module(nn.LSTM(4, 3, 2, batch_first=True)),
        lambda m, x: m(x)[0],
        (2, 5, 4),
    ),
    "GRU cell": (lambda: module(nn.GRUCell(4, 3)), lambda m, x: m(x, x[:, :3]), (2, 4)),
    "LSTM cell": (
        lambda: module(nn.LSTMCell(4, 3)),
        lambda m, x: m(x, (x[:, :3], x[:, 1:]))[1],
        (2, 4),
    ),
}


def of_input(name):
    made, call, sizes = MODULES[name]
    made = made()
    return (lambda x: call(made, x)), randn(*sizes)


def of_parameters(name):
    """The module as a function of its parameters."""
    made, call, sizes = MODULES[name]
    made = made()
    names, values = zip(*made.named_parameters(), strict=True)
    x = randn(*sizes)

    class Calling(nn.Module):
        def __init__(self):
            super().__init__()
            self.made = made

        def forward(self):
            return call(self.made, x)

    def f(*values):
        parameters = {f"made.{name}": v for name, v in zip(names, values, strict=True)}
        return torch.func.functional_call(Calling(), parameters, ())

    return f, *(v.detach() for v in values)


for name in MODULES:
    CASES[name] = of_input(name)
    CASES[f"{name}, its parameters"] = of_parameters(name)

cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@cases
def test_tangents_are_reverse_modes(case):
    f, *primals = case
    tangents = tangents_of(*primals)
    output, tangent = tl.jvp(f, tuple(primals), tangents)
    torch.testing.assert_close(output, f(*primals))
    cotangent = torch.ones_like(output) + output.detach().sin()
    pulled = plain(lambda *x: [f(*x)], primals, [cotangent])
    torch.testing.assert_close(pairing([cotangent], [tangent]), pairing(pulled, tangents))


def gradients_of(f):
    """The gradient of the sum of sines of what f returns, by torch's autograd."""

    def gradients(*primals):
        one = torch.ones((), dtype=torch.float64)
        return plain(lambda *x: [f(*x).sin().sum()], primals, [one])

    return gradients


@cases
def test_hessian_vector_products_are_differences_of_gradients(case):
    f, *primals = case
    tangents = tangents_of(*primals)
    product = tl.hvp(lambda *x: f(*x).sin().sum(), tuple(primals), tangents)
    expected = central_difference(gradients_of(f), primals, tangents, 1e-5)
    torch.testing.assert_close(list(product), expected, rtol=1e-5, atol=1e-6)


def normalised(norm):
    return lambda x: norm(x * 1.5) * torch.linspace(-1, 2, x.numel(), dtype=x.dtype).view(x.shape)


TWICE = {
    "layer_norm": (normalised(lambda x: F.layer_norm(x, (3,))), randn(2, 3)),
    "batch_norm": (
        normalised(lambda x: F.batch_norm(x, None, None, training=True)),
        randn(4, 2),
    ),
    "instance_norm": (normalised(F.instance_norm), randn(1, 2, 4)),
    "group_norm": (normalised(lambda x: F.group_norm(x, 2)), randn(2, 4)),
    "linalg.solve": (lambda a: torch.linalg.solve(a, A), randn(3, 3)),
    "linalg.inv": (torch.linalg.inv, randn(3, 3)),
    "linalg.cholesky": (lambda a: torch.linalg.cholesky(a @ a.mT + torch.eye(3)), randn(3, 3)),
    "linalg.eigvalsh": (lambda a: torch.linalg.eigvalsh(a @ a.mT), randn(3, 3)),
    "huber_loss": (lambda x: F.huber_loss(x, A), B),
    "softmax": (lambda x: x.softmax(-1), randn(2, 3)),
    "logsumexp": (lambda x: x.logsumexp(-1), randn(2, 3)),
    "vector_norm": (lambda x: torch.linalg.vector_norm(x, 3), randn(5)),
    "std": (torch.std, randn(5)),
}


@pytest.mark.parametrize(("f", "x"), TWICE.values(), ids=TWICE.keys())
def test_forward_over_forward_is_reverse_over_reverse(f, x):
    expected = torch.func.jacrev(torch.func.jacrev(f))(x)
    torch.testing.assert_close(tl.jacfwd(tl.jacfwd(f))(x), expected)


@pytest.mark.parametrize(("f", "x"), TWICE.values(), ids=TWICE.keys())
def test_forward_over_reverse_is_reverse_over_reverse(f, x):
    expected = torch.func.jacrev(torch.func.jacrev(f))(x)
    torch.testing.assert_close(tl.jacfwd(tl.jacrev(f))(x), expected)


@pytest.mark.parametrize(("f", "x"), TWICE.values(), ids=TWICE.keys())
def test_reverse_over_forward_is_reverse_over_reverse(f, x):
    expected = torch.func.jacrev(torch.func.jacrev(f))(x)
    torch.testing.assert_close(tl.jacrev(tl.jacfwd(f))(x), expected)
