"""Programs that write in place and through views: gradients and errors as in torch.func."""

import re

import pytest
import torch
import torch.func

import torchlayers as tl
from tests.rules.reverse.programs import W, X, function, program
from tests.support.in_place_calls import PROGRAMS, summed
from tests.support.traced_steps import traced_steps

# torch warns of operators that it batches sample by sample, and of overlapping writes.
pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
    pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated"),
]

NESTS = {
    "grad": lambda tf, f: tf.grad_and_value(f)(X.clone()),
    "vjp": lambda tf, f: tf.vjp(f, X.clone())[1](torch.ones_like(X).mean()),
    "grad(grad)": lambda tf, f: tf.grad(lambda x: (tf.grad(f)(x * 1) * W).sum())(X),
    "jvp(grad)": lambda tf, f: tf.jvp(tf.grad(lambda x: f(x * 1)), (X,), (W,)),
    "vmap(grad)": lambda tf, f: tf.vmap(tf.grad(f))(torch.stack([X, X.flip(0)])),
}
LOOP = {"loop": lambda tf, f: torch.stack([tf.grad(f)(x.clone()) for x in (X, X.flip(0))])}

# Equivalent error messages of the two libraries.
REFUSALS = {
    "what is needed was written to": "modified by an inplace operation",
    "a captured tensor": r"mutate a captured [tT]ensor",
    "a leaf": "a leaf Variable that requires grad",
    "a view of several": "returns multiple views",
    "a view made under no_grad": "no_grad mode",
    "what overlaps": "refers to a single memory location",
    "a batch": "vmap",
}


def outcome(tf, nest, source):
    """(result, None), or (None, the kind of error)."""
    try:
        return (NESTS | LOOP)[nest](tf, function(source)), None
    except RuntimeError as error:
        said = str(error)
        kinds = [kind for kind, words in REFUSALS.items() if re.search(words, said)]
        assert kinds, said
        return None, kinds[0]


def check(seed, nest):
    source = program(seed)
    found, refused = outcome(tl, nest, source)
    assert tl.current_stack() == ()
    expected, their_refusal = outcome(torch.func, nest, source)
    if their_refusal == "a batch" and refused != "a batch":
        expected, their_refusal = outcome(torch.func, "loop", source)
    assert refused == their_refusal, source
    torch.testing.assert_close(found, expected, msg=lambda said: f"{said}\n{source}")
    return refused


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(200))
def test_a_program_that_writes_is_as_in_torch_func(seed):
    for nest in NESTS:
        check(seed, nest)


@pytest.mark.full
@pytest.mark.parametrize("hundred", range(2, 50))
def test_more_programs_that_write(hundred):
    for seed in range(100 * hundred, 100 * hundred + 100):
        for nest in NESTS:
            check(seed, nest)


OF_PAIRS = {
    "grad": lambda tf, f: tf.grad(curved(f))(X[:, 0]),
    "grad(grad)": lambda tf, f: tf.grad(lambda x: (tf.grad(curved(f))(x) * W[:, 0]).sum())(X[:, 0]),
    "vmap(grad)": lambda tf, f: tf.vmap(tf.grad(curved(f)))(X.t()),
    "grad(vmap)": lambda tf, f: tf.grad(lambda x: tf.vmap(curved(f))(x).sum())(X.t()),
}


def curved(f):
    """The sum of everything f returns, with a nonzero second derivative."""
    return lambda x: summed(f)(x).sin()


@pytest.mark.parametrize("nest", OF_PAIRS.values(), ids=OF_PAIRS.keys())
@pytest.mark.parametrize(("writing", "pure"), PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_program_that_writes_has_the_gradients_of_one_that_does_not(writing, pure, nest):
    torch.testing.assert_close(nest(tl, writing), nest(torch.func, pure))
    assert tl.current_stack() == ()


@pytest.mark.sweep
def test_programs_are_of_every_kind():
    """Otherwise all programs might be rejected, or none."""
    outcomes = [check(seed, "vmap(grad)") for seed in range(100)]
    outcomes += [check(seed, "grad") for seed in range(200)]
    # Only torch.func rejects writes by a mask to a batch.
    assert {None, *REFUSALS} - {"what overlaps", "a batch"} <= set(outcomes)
    assert outcomes.count(None) > 100


SAVED = {  # rules that save their result, so that a write to it is an error
    "exp": torch.exp,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sqrt": lambda x: (x * x).sqrt(),
    "rsqrt": lambda x: (x * x).rsqrt(),
    "reciprocal": torch.reciprocal,
    "softmax": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(0),
    "logsumexp": lambda x: x.logsumexp(0),
    "relu": torch.relu,
    "tan": torch.tan,
    "amax": lambda x: x.amax(0),
    "elu_": lambda x: torch.nn.functional.elu(x * 1, inplace=True),
}
UNSAVED = {
    "sin": torch.sin,
    "mul": lambda x: x * x,
    "div": lambda x: x / (x * x + 1),
    "mm": lambda x: x @ x.mT,
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(1),
    "sort": lambda x: x.sort(0).values,
    "max": lambda x: x.max(0).values,
    "topk": lambda x: x.topk(2, 0).values,
    "index": lambda x: x[torch.tensor([0, 2])],
    "cat": lambda x: torch.cat([x, x]),
    "linear": lambda x: torch.nn.functional.linear(x, x),
}
WRITES = {
    "the result": lambda y: y.mul_(2),
    "a view of it": lambda y: y.view(-1)[:2].mul_(2),
    "through a view of a view": lambda y: y[:1].unsqueeze(0).squeeze(0).zero_(),
    "by index": lambda y: y.index_fill_(0, torch.tensor([0]), 3.0),
    "by copying": lambda y: y.copy_(y.detach() + 1),
}


def writing(op, write):
    def f(x):
        y = op(x)
        write(y)
        return y.sum()

    return f


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize("op", SAVED.values(), ids=SAVED.keys())
def test_a_result_that_is_saved_is_not_written_to(op, write):
    f = writing(op, write)
    for refused in (
        lambda: tl.grad(f)(X),
        lambda: tl.vjp(f, X)[1](torch.ones((), dtype=X.dtype)),
        lambda: tl.vmap(tl.grad(f))(X[None]),
        lambda: tl.jvp(tl.grad(f), (X,), (W,)),
        lambda: f(X.clone().requires_grad_()).backward(),
    ):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            refused()
        assert tl.current_stack() == ()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize("op", UNSAVED.values(), ids=UNSAVED.keys())
def test_a_result_that_is_not_saved_is_written_to(op, write):
    f = writing(op, write)
    x = X.clone().requires_grad_()
    f(x).backward()
    torch.testing.assert_close(tl.grad(f)(X), x.grad)
    torch.testing.assert_close(tl.vmap(tl.grad(f))(X[None])[0], x.grad)


PARTS = {
    "split": lambda x: x.split(2),
    "split_with_sizes": lambda x: x.split([1, 3]),
    "unbind": lambda x: x.unbind(),
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())
def test_views_of_several_results_follow_a_rule(part):
    def f(x):
        y = x * 1
        y.mul_(x)
        first, *_, last = part(y)
        return (first * last.sum()).sin().sum()

    x = torch.linspace(0.2, 1, 4, dtype=torch.float64)
    with traced_steps() as events:
        found = tl.grad(f)(x)
    assert {e.op for e in events if e.step == "rule"} & {
        "aten::split.Tensor",
        "aten::split_with_sizes",
        "aten::unbind.int",
    }
    torch.testing.assert_close(found, torch.func.grad(f)(x))


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())
def test_one_of_several_views_is_not_written_to(part):
    def f(x):
        first, *_ = part(x * 1)
        return first.mul_(2).sum()

    x = torch.linspace(0.2, 1, 4, dtype=torch.float64)
    for tf in (tl, torch.func):
        with pytest.raises(RuntimeError, match="returns multiple views"):
            tf.grad(f)(x)


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())
def test_a_write_is_seen_through_the_tangents_of_several_views(part):
    def f(x):
        y = x * 1
        first, *_ = part(y)
        y.mul_(x)
        return first

    x = torch.linspace(0.2, 1, 4, dtype=torch.float64)
    direction = torch.ones_like(x)
    torch.testing.assert_close(tl.jvp(f, (x,), (direction,)), torch.func.jvp(f, (x,), (direction,)))


WRITES_OF_A_SAMPLE = {
    "a factor": lambda x, y: y[0].mul_(x.mean()),
    "a value": lambda x, y: y[0].copy_(x[1] * x.sum()),
    "a term": lambda x, y: y[:, 0].add_(x[1].sin()),
    "through two views": lambda x, y: y.t()[1].unsqueeze(0).mul_(x.exp()[:1]),
    "twice": lambda x, y: (y[0].mul_(x.mean()), y.view(-1)[1:3].div_(x.sum())),
}


@pytest.mark.parametrize("is_hooked", [False, True])
@pytest.mark.parametrize("write", WRITES_OF_A_SAMPLE.values(), ids=WRITES_OF_A_SAMPLE.keys())
def test_a_view_is_written_with_what_the_sample_makes(write, is_hooked):
    """Cotangents from a basis, shared by all samples, meet writes of per-sample values."""

    def f(x):
        y = x * 1
        if is_hooked and y.requires_grad:
            y.register_hook(lambda g: g * 1)  # so that the engine runs the pass
        write(x, y)
        return y

    def pulled(x):
        _, pull = tl.vjp(f, x)
        return pull(torch.ones(2, 2, dtype=x.dtype))[0]

    x = torch.linspace(0.3, 1.4, 12, dtype=torch.float64).view(3, 2, 2)
    jacobians = torch.stack([torch.func.jacfwd(f)(each) for each in x])
    torch.testing.assert_close(tl.vmap(tl.jacrev(f))(x), jacobians)
    torch.testing.assert_close(tl.vmap(tl.jacrev(f, chunk_size=1))(x), jacobians)
    torch.testing.assert_close(tl.vmap(pulled)(x), jacobians.sum((1, 2)))
    twice = tl.vmap(tl.jacrev(tl.jacrev(f)))(x)
    hessians = [torch.func.jacrev(torch.func.jacrev(f))(each) for each in x]
    torch.testing.assert_close(twice, torch.stack(hessians))
