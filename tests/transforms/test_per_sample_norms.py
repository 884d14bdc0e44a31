"""Per-sample gradient norms and clipped sums, compared with those of vmap(grad)."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

import torchlayers as tl
from tests.support.calls import Tied, ambient
from torchlayers.errors import DimensionError, NotScalarError, TransformError
from torchlayers.memory import PeakMemory


class Calls(nn.Module):
    """A function of its layers and an input."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.function = forward

    def forward(self, x):
        return self.function(x, **self.layers)


def attention():
    return Calls(lambda x, a: a(x, x, x)[0], a=nn.MultiheadAttention(8, 2, batch_first=True))


def with_lstm():
    return Calls(lambda x, a, b: b(a(x)[0]), a=nn.LSTM(4, 5, batch_first=True), b=nn.Linear(5, 3))


def language_model(words):
    """A language model whose output layer shares the embedding's weight."""
    net = Calls(
        lambda x, a, b, c: c(torch.tanh(b(a(x)))),
        a=nn.Embedding(words, 6, padding_idx=2),
        b=nn.Linear(6, 6),
        c=nn.Linear(6, words, bias=False),
    )
    net.layers["c"].weight = net.layers["a"].weight
    return net


def twice(layer):
    return Calls(lambda x, a: a(torch.tanh(a(x))), a=layer)


def by_products():
    """Weights used in matrix products outside any module."""
    net = nn.ParameterDict({name: torch.randn(6, 6) for name in "abcde"} | {"f": torch.randn(6)})

    def forward(x, p):
        x = torch.addmm(p["f"], x.reshape(-1, 6), p["a"])
        x = torch.addmm(p["f"], x, p["b"], alpha=2)
        return torch.mm(torch.matmul(x @ p["c"], p["d"]).tanh(), p["e"])

    return Calls(forward, p=net)


def numbers(*shape, below=10):
    return torch.randint(below, shape)


# The number of positions decides between Gram matrices and gradients: few or many.
NETS = {
    "linear, no positions": (lambda: nn.Linear(4, 3), (5, 4)),
    "linear, few": (lambda: nn.Linear(9, 8, bias=False), (5, 2, 9)),
    "linear, many": (lambda: nn.Linear(4, 3), (5, 7, 4)),
    "linear, two dimensions of positions": (lambda: nn.Linear(9, 8), (5, 2, 1, 9)),
    "relu in place": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
        (4, 4),
    ),
    "products": (by_products, (3, 4, 6)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, padding="same"), (3, 2, 9)),
    "conv1d, even kernel": (lambda: nn.Conv1d(2, 3, 4, padding="same"), (3, 2, 9)),
    "conv2d, few": (lambda: nn.Conv2d(6, 8, 3, padding=1), (3, 6, 2, 2)),
    "conv2d, groups": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3, stride=2, padding=(1, 2), groups=2),
            nn.GELU(),
            nn.Conv2d(8, 6, (3, 2), dilation=2, padding="same", groups=2, bias=False),
        ),
        (3, 4, 9, 8),
    ),
    "conv2d, some of the input unread": (lambda: nn.Conv2d(2, 4, 2, stride=3), (2, 2, 9, 10)),
    "conv2d, depthwise": (lambda: nn.Conv2d(3, 6, 3, groups=3), (2, 3, 5, 5)),
    "conv2d, circular": (
        lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
        (2, 2, 5, 4),
    ),
    "conv3d": (lambda: nn.Conv3d(2, 4, 2, stride=(1, 2, 1)), (2, 2, 4, 5, 4)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(2, 3, 4, stride=3, output_padding=2), (2, 2, 7)),
    "transposed 2d": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, padding=1, groups=2),
        (3, 4, 5, 4),
    ),
    "transposed 2d, few": (lambda: nn.ConvTranspose2d(4, 6, 3), (3, 4, 1, 2)),
    "transposed 3d": (lambda: nn.ConvTranspose3d(2, 2, 2, dilation=2), (2, 2, 3, 2, 3)),
    "embedding, one": (lambda: nn.Embedding(10, 4), numbers(5, 1)),
    "embedding, few": (lambda: nn.Embedding(10, 9, padding_idx=3), numbers(5, 2, 3)),
    "embedding, many": (lambda: nn.Embedding(10, 4, padding_idx=3), numbers(5, 9)),
    "embedding by frequency": (lambda: nn.Embedding(10, 4, scale_grad_by_freq=True), numbers(5, 9)),
    "embedding bag": (lambda: nn.EmbeddingBag(10, 4), numbers(3, 9)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6)), (3, 2, 4)),
    "other norms": (
        lambda: nn.Sequential(nn.InstanceNorm2d(4, affine=True), nn.GroupNorm(2, 4), nn.RMSNorm(5)),
        (3, 4, 5, 5),
    ),
    "batch norm in evaluation": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).eval(),
        (3, 2, 5, 5),
    ),
    "parametrized": (lambda: weight_norm(nn.Linear(4, 5)), (3, 2, 4)),
    "a layer twice": (lambda: twice(nn.Linear(9, 9)), (3, 2, 9)),
    "a layer twice, many": (lambda: twice(nn.Linear(3, 3)), (3, 7, 3)),
    "a convolution twice": (lambda: twice(nn.Conv1d(3, 3, 3, padding=1)), (3, 3, 9)),
    "tied": (Tied, (3, 4)),
    "tied to an embedding": (lambda: language_model(40), numbers(3, 4, below=40)),
    "tied to an embedding, many": (lambda: language_model(10), numbers(3, 12)),
    "attention": (attention, (3, 5, 8)),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        (3, 5, 8),
    ),
    "LSTM": (with_lstm, (3, 6, 4)),
    "a weight used in two ways": (
        lambda: Calls(lambda x, a: a(x) * a.weight.sum(), a=nn.Linear(4, 4)),
        (3, 4),
    ),
    "a parameter that is added": (
        lambda: Calls(
            lambda x, a, b: a(x + b["p"]),
            a=nn.Linear(4, 4),
            b=nn.ParameterDict({"p": torch.ones(2, 4)}),
        ),
        (3, 2, 4),
    ),
    "unused parameters": (
        lambda: Calls(
            lambda x, a, b, c: (b(x), a(x))[1],
            a=nn.Linear(4, 2),
            b=nn.Linear(4, 3),
            c=nn.Linear(2, 2),
        ),
        (3, 4),
    ),
    "checkpointed": (
        lambda: Calls(
            lambda x, a, b: b(tl.checkpoint(lambda x: a(x).tanh())(x)),
            a=nn.Linear(4, 4),
            b=nn.Linear(4, 4),
        ),
        (3, 4, 4),
    ),
    "checkpointed by torch": (
        lambda: Calls(
            lambda x, a, b: b(checkpoint(lambda x: a(x).tanh(), x, use_reentrant=False)),
            a=nn.Linear(4, 4),
            b=nn.Linear(4, 4),
        ),
        (3, 4, 4),
    ),
    "in other transforms": (
        lambda: Calls(
            lambda x, a: (
                tl.grad(lambda x: a(x).tanh().sum())(x) + tl.vmap(a)(x) + tl.jvp(a, (x,), (x,))[1]
            ),
            a=nn.Linear(4, 4),
        ),
        (3, 2, 4),
    ),
    "in a loop": (
        lambda: Calls(
            lambda x, a: tl.scan(
                lambda c, x: (a(c + x).tanh(), c), torch.zeros_like(x[0, 0]), x[0]
            )[1],
            a=nn.Linear(4, 4),
        ),
        (3, 5, 4),
    ),
}


def problem(name, dtype=torch.float64):
    """The loss of one sample, its parameters, and samples."""
    torch.manual_seed(0)
    make, samples = NETS[name]
    net = make().to(dtype)
    x = torch.randn(samples, dtype=dtype) if isinstance(samples, tuple) else samples
    params = {name: value.detach() for name, value in net.named_parameters()}

    def loss(params, x):
        output = tl.functional_call(net, params, (x.unsqueeze(0),))
        weights = torch.linspace(0.5, 2, output.numel(), dtype=output.dtype).view(output.shape)
        return (output * weights).sin().sum()

    return loss, params, x


def expected(loss, params, x, max_norm=None):
    """The norms by each tensor and by all, and the clipped sums."""
    gradients = tl.vmap(tl.grad(loss), (None, 0))(params, x)
    each = {name: g.flatten(1).norm(dim=1) for name, g in gradients.items()}
    norms = torch.stack([*each.values()]).norm(dim=0)
    scale = (norms.median() / norms).clamp(max=1)
    sums = {name: torch.tensordot(scale, g, 1) for name, g in gradients.items()}
    return each, norms, sums


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", NETS)
def test_norms_and_clipped_sums_are_those_of_all_gradients(name):
    loss, params, x = problem(name)
    each, norms, sums = expected(loss, params, x)
    before = ambient()
    torch.testing.assert_close(tl.per_sample_norms(loss)(params, x), norms)
    torch.testing.assert_close(tl.per_sample_norms(loss, each=True)(params, x), each)
    torch.testing.assert_close(tl.clipped_grad(loss, norms.median())(params, x), (sums, norms))
    assert ambient() == before


OUTSIDE = {
    "grad": lambda f, params, x: tl.grad(lambda p, x: f(p, x).sin().sum(), (0, 1))(params, x),
    "jvp": lambda f, params, x: tl.jvp(lambda x: f(params, x), (x,), (x.cos(),)),
    "vmap": lambda f, params, x: tl.vmap(f, (None, 0))(params, torch.stack([x, 2 * x])),
    "hessian": lambda f, params, x: tl.hessian(lambda x: f(params, x).sum())(x),
    "compile": lambda f, params, x: tl.compile(f)(params, x),
    "seeded": lambda f, params, x: tl.seeded(f, tl.random.key(0))(params, x),
}


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("transform", OUTSIDE)
@pytest.mark.parametrize("name", ["linear, few", "relu in place", "conv1d", "a layer twice"])
def test_inside_other_transforms(name, transform):
    loss, params, x = problem(name)
    around = OUTSIDE[transform]
    ours = around(tl.per_sample_norms(loss), params, x)
    torch.testing.assert_close(ours, around(lambda p, x: expected(loss, p, x)[1], params, x))

    def clipped(params, x):
        norms = expected(loss, params, x)[1]
        return tl.clipped_grad(loss, norms.median())(params, x)[0]["weight"]

    if "weight" in params:
        theirs = around(lambda p, x: expected(loss, p, x)[2]["weight"], params, x)
        torch.testing.assert_close(around(clipped, params, x), theirs)


def test_plain_autograd_differentiates_norms():
    loss, params, x = problem("linear, few")
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    ours, theirs = (
        torch.autograd.grad(f(leaves, x).sum(), [*leaves.values()])
        for f in (tl.per_sample_norms(loss), lambda p, x: expected(loss, p, x)[1])
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["linear, few", "conv2d, groups", "embedding, many", "tied"])
def test_in_single_precision(name):
    loss, params, x = problem(name, torch.float32)
    _, norms, sums = expected(loss, params, x)
    torch.testing.assert_close(tl.clipped_grad(loss, norms.median())(params, x), (sums, norms))


@pytest.mark.parametrize("name", ["linear, few", "conv1d", "embedding, many"])
def test_half_precision_gives_norms_in_single(name):
    loss, params, x = problem(name, torch.bfloat16)
    found = tl.per_sample_norms(loss)(params, x)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, expected(loss, params, x)[1].float(), rtol=0.02, atol=0)
    sums, _ = tl.clipped_grad(loss, 1.0)(params, x)
    assert {total.dtype for total in sums.values()} == {torch.bfloat16}


def test_autocast():
    loss, params, x = problem("relu in place", torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found, theirs = tl.per_sample_norms(loss)(params, x), expected(loss, params, x)[1]
    torch.testing.assert_close(found, theirs, rtol=0.02, atol=0)


@pytest.mark.parametrize(
    "name", ["linear, few", "conv2d, groups", "embedding, many", "other norms"]
)
def test_a_batch_may_be_empty(name):
    loss, params, x = problem(name)
    assert tl.per_sample_norms(loss)(params, x[:0]).shape == (0,)
    sums, norms = tl.clipped_grad(loss, 1.0)(params, x[:0])
    assert norms.shape == (0,)
    torch.testing.assert_close(sums, {name: torch.zeros_like(p) for name, p in params.items()})


def test_a_gradient_of_zero_has_norm_zero_and_so_has_its_derivative():
    def loss(weight, x):
        return (x @ weight).relu().sum()

    weight, x = torch.ones(2, 2), torch.tensor([[-1.0, -1.0], [1.0, 0.0]])
    torch.testing.assert_close(tl.per_sample_norms(loss)(weight, x), torch.tensor([0.0, 2**0.5]))
    total = tl.grad(lambda x: tl.per_sample_norms(loss)(weight, x).sum())(x)
    torch.testing.assert_close(total, torch.tensor([[0.0, 0.0], [2**0.5, 0.0]]))
    torch.testing.assert_close(tl.clipped_grad(loss, 5.0)(weight, x)[0], x[1:].mT.expand(2, 2))


def test_some_of_the_parameters():
    loss, params, x = problem("relu in place")
    each, _, _ = expected(loss, params, x)
    found = tl.per_sample_norms(loss, tl.names("2.*"), each=True)(params, x)
    torch.testing.assert_close(found, {name: each[name] for name in ("2.weight", "2.bias")})
    sums, norms = tl.clipped_grad(loss, 1e6, tl.names("0.weight"), (None, 0))(params, x)
    torch.testing.assert_close(norms, each["0.weight"])
    total = tl.grad(lambda p: sum(loss(p, sample) for sample in x))(params)
    torch.testing.assert_close(sums, {"0.weight": total["0.weight"]})


def test_arguments_by_number_and_samples_in_another_dimension():
    def loss(x, weight):
        return (x @ weight).sin().sum()

    weight, x = torch.randn(3, 2, dtype=torch.float64), torch.randn(4, 3, 5, dtype=torch.float64)
    gradients = tl.vmap(tl.grad(loss, (1, 0)), (2, None))(x, weight)
    found = tl.per_sample_norms(loss, (1, 0), (2, None), each=True)(x, weight)
    torch.testing.assert_close(found, tuple(g.flatten(1).norm(dim=1) for g in gradients))
    by_weight = tl.per_sample_norms(loss, 1, (2, None), chunk_size=2)(x, weight)
    torch.testing.assert_close(by_weight, found[0])


def test_weights_of_their_own():
    """An argument that is differentiated may be batched over the samples."""
    weights, x = torch.randn(4, 3, 2), torch.randn(4, 5, 3)

    def loss(weight, x):
        return (x @ weight).sin().sum()

    norms = tl.vmap(tl.grad(loss))(weights, x).flatten(1).norm(dim=1)
    torch.testing.assert_close(tl.per_sample_norms(loss, in_dims=0)(weights, x), norms)
    with pytest.raises(DimensionError, match="its gradients can't be summed over the samples"):
        tl.clipped_grad(loss, 1.0, in_dims=0)(weights, x)


def test_random_numbers_are_drawn_once_per_sample():
    net = nn.Sequential(nn.Linear(4, 9), nn.Dropout(), nn.Linear(9, 3))
    params, x = dict(net.named_parameters()), torch.randn(5, 4)
    calls = []

    def loss(params, x):
        calls.append(x)
        return tl.functional_call(net, params, (x,)).square().sum()

    torch.manual_seed(0)
    gradients = tl.vmap(tl.grad(loss), (None, 0), randomness="different")(params, x)
    calls.clear()
    torch.manual_seed(0)
    sums, _ = tl.clipped_grad(loss, 1e6, randomness="different")(params, x)
    assert len(calls) == 1
    torch.testing.assert_close(sums, {name: g.sum(0) for name, g in gradients.items()})


def test_aux_is_returned_for_each_sample():
    loss, params, x = problem("linear, few")

    def with_aux(params, x):
        return loss(params, x), {"sum": x.sum()}

    norms, aux = tl.per_sample_norms(with_aux, has_aux=True)(params, x)
    torch.testing.assert_close(aux["sum"], x.sum((1, 2)))
    _, (same, aux) = tl.clipped_grad(with_aux, 1.0, has_aux=True)(params, x)
    torch.testing.assert_close((same, aux["sum"]), (norms, x.sum((1, 2))))


def test_per_sample_gradients_are_not_materialized():
    def loss(weights, x):
        for weight in weights:
            x = F.linear(x, weight).tanh()
        return x.sum()

    weights, x = [torch.randn(200, 200) for _ in range(4)], torch.randn(50, 2, 200)
    of_all_gradients = 50 * sum(weight.nbytes for weight in weights)
    for call in (tl.per_sample_norms(loss), tl.clipped_grad(loss, 1.0)):
        with PeakMemory() as memory:
            call(weights, x)
        assert memory.peak < 0.2 * of_all_gradients


def test_gradients_are_dropped_one_by_one():
    """Both those that are smaller than Gram matrices and those that vmap(grad) computes."""

    def loss(weights, x):
        for weight in weights:
            x = F.linear(x, weight).tanh() + weight.mean()
        return x.sum()

    weights, x = [torch.randn(100, 100) for _ in range(8)], torch.randn(50, 1, 100)
    with PeakMemory() as memory:
        tl.per_sample_norms(loss)(weights, x)
    assert memory.peak < 0.7 * 50 * sum(weight.nbytes for weight in weights)


WRITES = {
    "whole": lambda x, same: x.add_(1),
    "a part": lambda x, same: x[:2].add_(1),
    "a sample's own to what all have": lambda x, same: same.add_(x),
}


@pytest.mark.parametrize("name", WRITES)
def test_written_tensors_are_rejected(name):
    def loss(weight, x):
        x, same = x + 0, torch.ones(4)
        y = F.linear(same if "all" in name else x, weight)
        WRITES[name](x, same)
        return (y * y).sum()

    for transform in (tl.per_sample_norms(loss), tl.clipped_grad(loss, 1.0)):
        with pytest.raises(TransformError, match="has been written to since"):
            transform(torch.ones(4, 4), torch.randn(3, 4))
    assert tl.current_stack() == ()


def test_batch_norm_in_training_is_refused():
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
    params = dict(net.named_parameters())

    def loss(params, x):
        return tl.functional_call(net, params, (x.unsqueeze(0),)).sum()

    with pytest.raises(RuntimeError, match="BatchNorm updates its statistics"):
        tl.per_sample_norms(loss)(params, torch.randn(4, 2, 5, 5))


def test_a_largest_norm_is_a_norm():
    for max_norm in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="greater than 0"):
            tl.clipped_grad(torch.sum, max_norm)


def test_misuse_is_refused_in_words():
    weight, x = torch.ones(3, 3), torch.ones(2, 4, 3)
    with pytest.raises(NotScalarError, match=r"per_sample_norms: .* got shape \(4, 3\)"):
        tl.per_sample_norms(lambda w, x: x @ w)(weight, x)
    with pytest.raises(NotScalarError, match="clipped_grad"):
        tl.clipped_grad(lambda w, x: x @ w, 1.0)(weight, x)

    def past_modes(w, x):
        with torch._C.DisableTorchFunction():
            other = w.sum()
        return (x @ w).sum() + other

    with pytest.raises(TransformError, match="where torch function modes are disabled"):
        tl.per_sample_norms(past_modes)(weight, x)


SAMPLES = torch.ones(4, 3)
NORMS = {
    "per_sample_norms": tl.per_sample_norms,
    "clipped_grad": lambda f, **options: tl.clipped_grad(f, 1.0, **options),
}


@pytest.mark.parametrize("api", NORMS)
def test_errors_name_what_was_called(api):
    def loss(w, x):
        return (w @ x).sum()

    w, transform = torch.ones(2, 3), NORMS[api]
    calls = [
        lambda: transform(loss, in_dims=(None, 5))(w, SAMPLES),
        lambda: transform(loss, in_dims=(None, None))(w, SAMPLES),
        lambda: transform(loss)(w, 3.0),
        lambda: transform(lambda w, x, y: loss(w, x))(w, SAMPLES, SAMPLES[:2]),
        lambda: transform(lambda w, x: (loss(w, x), object()), has_aux=True)(w, SAMPLES),
        lambda: transform(loss, randomness="never")(w, SAMPLES),
        lambda: transform(lambda w, x: w @ x)(w, SAMPLES),
        lambda: transform(loss)(w.long(), SAMPLES),
    ]
    for call in calls:
        with pytest.raises((RuntimeError, ValueError), match=rf"^torchlayers: {api}\b"):
            call()


@pytest.mark.parametrize("transform", [tl.per_sample_norms, lambda f: tl.clipped_grad(f, 1.0)])
def test_batch_norm_of_one_sample_warns(transform):
    """The statistics that tl.functional returns are written nowhere, so nothing else says so."""
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
    apply, params, buffers = tl.functional(net)

    def loss(params, x):
        return apply(params, buffers, x.unsqueeze(0))[0].square().sum()

    with pytest.warns(UserWarning, match="batch norm in training normalizes each sample"):
        transform(loss)(params, torch.randn(4, 2, 5, 5))
