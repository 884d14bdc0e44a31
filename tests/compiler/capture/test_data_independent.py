"""Captures of torch functions that read values on which no result depends."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchlayers as tl
from tests.support.calls import assert_same

torch.manual_seed(0)
X = torch.rand(4, 6, dtype=torch.float64)
PLACES = torch.tensor([0, 2, 1, 2])
COUNTS = torch.tensor([1, 2, 1, 3, 1, 1])
SIGNAL = torch.randn(64, dtype=torch.float64)
WINDOW = torch.hann_window(16, dtype=torch.float64)
SCORES = torch.randn(7, 2, 4, dtype=torch.float64)
TARGETS = torch.tensor([[1, 2, 3], [2, 2, 0]])
SPECTRUM = torch.stft(SIGNAL, 16, window=WINDOW, return_complex=True)


def ctc(scores, *lengths, targets=TARGETS, **options):
    return F.ctc_loss(scores.log_softmax(-1), targets, *lengths, **options)


LENGTHS = torch.tensor([7, 6]), torch.tensor([3, 2])


# Functions of a floating-point tensor and other arguments.
def masked(x):
    scores = x @ x.mT
    scores[torch.ones(4, 4).triu(1).bool()] = -10.0
    scores[torch.eye(4).bool()] = x[:, 0]
    return scores.softmax(-1)


PROGRAMS = {
    "one_hot": (lambda x, i: F.one_hot(i, 6) * x, X, PLACES),
    "one_hot of a captured tensor": (lambda x: F.one_hot(PLACES, 6) * x, X),
    "cov": (torch.cov, X),
    "cov of one variable": (lambda x: x[0].cov(), X),
    "cov with weights": (lambda x, n: torch.cov(x, fweights=n, aweights=x[0]), X, COUNTS),
    "cov with counts": (lambda x, n: x.cov(fweights=n, correction=0), X, COUNTS),
    "cov with other weights": (lambda x: torch.cov(x, aweights=X[1]), X),
    "corrcoef": (torch.corrcoef, X),
    "istft": (lambda x, s: torch.istft(x * s, 16, window=WINDOW.abs() + 1), X[0, 0], SPECTRUM),
    "istft, its window given": (
        lambda x, s, w: (x * s).istft(16, window=w),
        X[0, 0],
        SPECTRUM,
        WINDOW,
    ),
    "istft, its window made": (
        lambda x, s: torch.istft(x * s, 16, window=torch.ones(16, dtype=torch.float64)),
        X[0, 0],
        SPECTRUM,
    ),
    "gaussian_nll_loss": (lambda x, y: F.gaussian_nll_loss(x, y, y, full=True), X, X + 1),
    "a module's loss": (lambda x, y: nn.GaussianNLLLoss()(y, x, x), X, X + 1),
    "combinations": (lambda x: torch.combinations(x[0], 2), X),
    "combinations of three": (
        lambda x: torch.combinations(x[0], 3, with_replacement=True).square(),
        X,
    ),
    "lstsq": (lambda x, y: torch.linalg.lstsq(x.mT, y).solution, X, X[1]),
    "lstsq of a batch": (
        lambda x, y: torch.linalg.lstsq(x.reshape(2, 2, 6), y)[0],
        X,
        X.reshape(2, 2, 6)[..., :3],
    ),
    "lstsq by gels": (lambda x: torch.linalg.lstsq(x.mT, X.mT, driver="gels")[:2], X),
    "ctc_loss": (ctc, SCORES, *LENGTHS),
    "ctc_loss by lists": (lambda s: ctc(s, (7, 6), [3, 2], reduction="sum"), SCORES),
    "ctc_loss of one": (
        lambda s: ctc(s[:, 0], (7,), (3,), targets=TARGETS[0], reduction="none"),
        SCORES,
    ),
    "ctc_loss in a row": (
        lambda s, *n: ctc(s, *n, targets=torch.tensor([1, 2, 3, 2, 2]), zero_infinity=True),
        SCORES,
        *LENGTHS,
    ),
    "a module's ctc_loss": (
        lambda s, *n: nn.CTCLoss(reduction="none")(s.log_softmax(-1), TARGETS, *n),
        SCORES,
        *LENGTHS,
    ),
    "a mask of shapes": (lambda x: x[torch.ones(4, 6).tril().bool()] * 2, X),
    "a mask of numbers": (lambda x: x[:, torch.tensor([True, False] * 3)], X),
    "a mask that was written": (
        lambda x: x.masked_select(torch.zeros(4, 6).fill_diagonal_(1) > 0),
        X,
    ),
    "a mask that is written by": (masked, X),
    "places of shapes": (lambda x: x[torch.eye(4, 6).nonzero(as_tuple=True)], X),
    "repeated": (lambda x: x.repeat_interleave(torch.arange(4), 0), X),
    "an addition's factor": (lambda x, a: torch.add(x, x, alpha=a).sub_(X, alpha=a), X, X[0, 0]),
    "a product's factor": (lambda x, a: x.addcmul(x, x, value=a), X, X[0, 0]),
    "a quotient's factor": (lambda x, a: torch.addcdiv(x, X, x + 1, value=a), X, X[0, 0]),
    "a tensor full": (lambda x, a: x * torch.full((6,), a) + torch.full_like(x, a), X, X[0, 0]),
    "a tensor full of integers": (lambda x, n: x * x.new_full((6,), n), X, PLACES[1]),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled_functions_equal_eager(name):
    f, x, *rest = PROGRAMS[name]
    compiled = tl.compile(f, backend="replay")
    for scale in (1, 2):
        given = x * scale
        assert_same(compiled(given, *rest), f(given, *rest), rounded=True)


@pytest.mark.sweep
@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives(name):
    f, x, *rest = PROGRAMS[name]

    def total(x):
        leaves = [leaf for leaf in tl.tree.leaves(f(x, *rest)) if leaf.is_floating_point()]
        return sum(leaf.sin().sum() for leaf in leaves)

    slope = tl.grad(total)
    assert_same(tl.compile(slope, backend="replay")(x), slope(x), rounded=True)
    given = [x.clone().requires_grad_() for _ in range(2)]
    results = total(given[0]), tl.compile(total, backend="replay")(given[1])
    grads = [torch.autograd.grad(y, x) for y, x in zip(results, given, strict=True)]
    assert_same(*grads, rounded=True)


normal = torch.distributions.Normal(X[0], X[0], validate_args=True)
DISTRIBUTIONS = {
    "made inside": lambda x: torch.distributions.Normal(x, x, validate_args=True).log_prob(x),
    "made outside": lambda x: normal.log_prob(x),
    "of an interval": lambda x: torch.distributions.Uniform(x, x + 1, True).log_prob(x + 0.5),
    "drawn from": lambda x: torch.distributions.Gamma(x, x, validate_args=True).mean,
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_with_validate_args(name, monkeypatch):
    # Dynamo turns validation off for good.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    f = DISTRIBUTIONS[name]
    compiled = tl.compile(f, backend="replay")
    for scale in (1, 2):
        assert_same(compiled(X * scale), f(X * scale), rounded=True)
    with pytest.raises(ValueError, match="to satisfy the constraint"):
        torch.distributions.Normal(X, -X)
    with pytest.raises(ValueError, match="to be within the support"):
        normal.log_prob(X * torch.nan)


# vmap rejects these, compiled or not: torch checks the values of weights or variances.
NOT_BATCHED = {"cov with weights", "a module's loss"}


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in NOT_BATCHED])
def test_functions_under_vmap(name):
    f, x, *rest = PROGRAMS[name]
    xs = torch.stack([x, x * 2, x + 1])
    batched = tl.vmap(lambda x: f(x, *rest))
    assert_same(tl.compile(batched, backend="replay")(xs), batched(xs), rounded=True)


@pytest.mark.full  # compiles for ten seconds and more; the others replay
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
@pytest.mark.parametrize("name", ["lstsq of a batch", "ctc_loss by lists", "istft", "combinations"])
def test_inductor_compiles_the_functions(name):
    f, x, *rest = PROGRAMS[name]
    slope = tl.grad(lambda x: f(x, *rest).square().sum())
    compiled = tl.compile(slope)
    for scale in (1, 2):
        assert_same(compiled(x * scale), slope(x * scale), rounded=True)
    assert compiled.report().signatures[0].how == "inductor"


REFUSED = {
    "residuals that are there by the rank": (
        lambda x: torch.linalg.lstsq(x.mT, x.mT, driver="gelsd"),
        "Use the driver 'gelsy' or 'gels'",
    ),
    "how many classes there are": (lambda x: F.one_hot(x.long()), r"In test_data_independent.py"),
    "a mask of what is given": (lambda x: x[x > 0], r"In test_data_independent.py"),
    "a mask that what is given was written to": (
        lambda x: x[torch.zeros(4, 6, dtype=torch.bool).copy_(x > 0)],
        r"In test_data_independent.py",
    ),
    "a mask of random numbers": (
        lambda x: x[torch.rand(4, 6) > 0.5],
        r"In test_data_independent.py",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_data_dependent_functions_are_rejected(name):
    f, said = REFUSED[name]
    with pytest.raises(tl.errors.TransformError, match=said):
        tl.compile(f, backend="replay", fullgraph=True)(X)


def test_arguments_by_name():
    def f(x, number):
        return (
            torch.add(input=x, other=x),
            torch.add(input=x, other=x, alpha=number),
            x.sub(other=x, alpha=number),
            torch.addcmul(input=x, tensor1=x, tensor2=x, value=number),
            torch.addcdiv(x, x, tensor2=x + 2, value=number),
            torch.full_like(input=x, fill_value=number),
            torch.full(size=(2,), fill_value=number),
        )

    x, number = torch.rand(3), torch.tensor(0.5)
    expected = f(x, number)
    torch.testing.assert_close(tl.compile(f, backend="replay")(x, number), expected)


def test_second_derivatives_of_masked_writes():
    hessian = tl.hessian(lambda x: masked(x).square().sum())
    assert_same(tl.compile(hessian, backend="replay")(X), hessian(X), rounded=True)


def rectified(x):
    y = x.clone()
    y[x < 0] = 0
    return y


def chosen(mask, x, value=0.0):
    y = x.clone()
    y[mask] = value
    return y


ROWS = torch.arange(6) % 2 == 0
SHARED_MASKS = {
    "jacfwd": (tl.jacfwd(rectified), X[0] - 0.5),
    "jacrev": (tl.jacrev(rectified), X[0] - 0.5),
    "hessian": (tl.hessian(lambda x: (rectified(x) ** 2).sum()), X[0] - 0.5),
    "vmap": (tl.vmap(chosen, in_dims=(None, 0)), ROWS, X),
    "a row per position": (tl.vmap(chosen, in_dims=(None, 1)), ROWS[:4], X),
    "values": (tl.vmap(chosen, in_dims=(None, 0, 0)), ROWS, X, X[:, 0]),
    "added": (
        tl.vmap(lambda x: x.index_put((ROWS,), x.sum(), accumulate=True)),
        X,
    ),
}


@pytest.mark.parametrize(("f", "args"), [(f, args) for f, *args in SHARED_MASKS.values()])
def test_a_write_by_a_mask_that_samples_share(f, args):
    assert_same(tl.compile(f, backend="replay")(*args), f(*args))
