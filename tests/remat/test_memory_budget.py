"""The option memory_budget= of grad and other transforms."""

import gc
import math
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F

import torchlayers as tl
from tests.remat.counters import Counted
from tests.remat.functions import functions, layers
from tests.remat.nests import ONE, assert_same, compare, nests
from tests.remat.test_checkpoint import RECORDINGS
from torchlayers import _C
from torchlayers.errors import MemoryBudgetError, RecomputationError, TransformError
from torchlayers.memory import PeakMemory
from torchlayers.remat.budget import budgeted


def least(call):
    """Returns the smallest budget in bytes with which the call succeeds."""
    budget = 1
    while True:
        try:
            call(budget)
        except MemoryBudgetError as error:
            budget = error.least
        else:
            return budget


def within_the_least(f):
    """Returns f with its smallest possible budget, determined at each call."""

    def wrapper(x):
        budget = least(lambda budget: budgeted("grad", f, budget)(x))
        return budgeted("grad", f, budget)(x)

    return wrapper


def within(budget):
    return lambda f: budgeted("grad", f, budget)


BUDGETS = {"all": within(1.0), "kept": within(10**9), "least": within_the_least}


@pytest.mark.sweep
@pytest.mark.parametrize("way", BUDGETS.values(), ids=BUDGETS)
@functions
@nests
def test_budget_does_not_change_results(nest, function, way):
    """Equal up to rounding, since small operators are not computed directly while a mode is on."""
    compare(nest, way(function), function, exactly=False)


# The transforms with this option.


def chain_of_vectors(x):
    for _ in range(8):
        x = x.sin().exp().tanh().cos()
    return x


def sum_of_chain(x):
    return chain_of_vectors(x).sum()


LONG = torch.linspace(-1, 1, 300, dtype=torch.float64)
TRANSFORMS = {
    "grad": lambda **options: tl.grad(sum_of_chain, **options)(LONG),
    "grad by name": lambda **options: tl.grad(
        lambda d: sum_of_chain(d["x"]), tl.names("x"), **options
    )({"x": LONG}),
    "grad_and_value": lambda **options: tl.grad_and_value(sum_of_chain, **options)(LONG),
    "vjp": lambda **options: tl.vjp(chain_of_vectors, LONG, **options)[1](LONG),
    "vjp, twice": lambda **options: [
        vjp_fn(LONG) for vjp_fn in [tl.vjp(chain_of_vectors, LONG, **options)[1]] for _ in range(2)
    ],
    "jacrev": lambda **options: tl.jacrev(chain_of_vectors, **options)(LONG[:20]),
    "jacrev, in chunks": lambda **options: tl.jacrev(chain_of_vectors, chunk_size=7, **options)(
        LONG[:20]
    ),
    "hessian": lambda **options: tl.hessian(sum_of_chain, **options)(LONG[:20]),
    "vmap(grad)": lambda **options: tl.vmap(tl.grad(sum_of_chain, **options))(LONG.reshape(3, 100)),
    "grad(grad)": lambda **options: tl.grad(
        lambda x: (tl.grad(sum_of_chain, **options)(x) ** 2).sum(), **options
    )(LONG),
}
transforms = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)


@pytest.mark.parametrize("budget", [1.0, 0.5, 0.2, 10**9])
@transforms
def test_transforms_with_a_budget_equal_those_without(transform, budget):
    assert_same(transform(memory_budget=budget), transform())


@transforms
def test_transforms_with_the_smallest_budget_equal_those_without(transform):
    budget = least(lambda budget: transform(memory_budget=budget))
    assert_same(transform(memory_budget=budget), transform())
    with pytest.raises(MemoryBudgetError, match=rf"at least {budget} are needed\."):
        transform(memory_budget=budget - 1)
    assert tl.current_stack() == ()


@pytest.mark.parametrize("budget", [0, -1, 0.0, 1.5, True, "half"])
def test_invalid_budget_is_rejected(budget):
    with pytest.raises(TransformError, match="memory_budget must be a number of bytes"):
        tl.grad(layers, memory_budget=budget)


# What functions may do.


@pytest.mark.parametrize("budget", [1.0, 0.7])
def test_the_function_runs_once(budget):
    calls = []

    def f(x):
        calls.append(x)
        return sum_of_chain(x)

    for _ in range(2):
        tl.grad(f, memory_budget=budget)(LONG)
    assert len(calls) == 2


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_random_numbers_are_drawn_once(randomness):
    def f(x):
        for _ in range(6):
            x = F.dropout(x.exp().sin(), 0.5)
        return x.sum() * torch.rand(())

    def call(**options):
        torch.manual_seed(0)
        result = tl.vmap(tl.grad(f, **options), randomness=randomness)(LONG.reshape(3, 100))
        return result, torch.rand(3)  # the state afterwards

    budget = least(lambda budget: call(memory_budget=budget))
    for _ in range(2):
        assert_same(call(memory_budget=budget), call())


def test_data_dependent_branch():
    """A plan that was made for other operators is still correct."""

    def f(x):
        for _ in range(10):
            x = x.sin() if x.sum() > 0 else x.exp().cos()
        return x.sum()

    transform = tl.grad(f, memory_budget=0.5)
    for x in (LONG + 0.5, LONG - 2, LONG + 0.5, 3 * LONG):
        assert_same(transform(x), tl.grad(f)(x))


@pytest.mark.parametrize(
    "around",
    [
        tl.functionalize,
        lambda f: tl.functionalize(tl.vmap(f)),
        lambda f: lambda x: tl.jet(f, (x,), ([x, x],))[1],
        tl.laplacian,
        lambda f: tl.jacfwd(f, sparse=True),
        lambda f: tl.grad(lambda x: tl.jet(f, (x,), ([x],))[1][0].sum()),
    ],
    ids=["functionalize", "of vmap", "jet", "laplacian", "sparse", "grad of jet"],
)
def test_budget_inside_functionalize_and_layers_in_python(around):
    def f(x):
        for _ in range(3):
            x = torch.relu_(x.sin() + 1).exp().tanh() * x
        return x.sum()

    x = torch.tensor([[0.5, -0.3, 0.8]], dtype=torch.float64)
    assert_same(around(tl.grad(f, memory_budget=0.5))(x), around(tl.grad(f))(x), exactly=False)


def test_writes_to_tensors_that_were_read():
    def f(x, buffer):
        y = x * 2
        for _ in range(6):
            z = y + buffer
            y.mul_(2)
            buffer.add_(1)
            y = z * y.cos()
        return (y * buffer).sum()

    def call(**options):
        buffer = torch.ones(300, dtype=torch.float64)
        return tl.grad(f, **options)(LONG, buffer), buffer

    for budget in (1.0, least(lambda budget: call(memory_budget=budget))):
        assert_same(call(memory_budget=budget), call())


def test_batch_norm_updates_its_statistics_once():
    def run(**options):
        def f(x, mean, var):
            for _ in range(4):
                x = F.batch_norm(x, mean, var, training=True).sin().exp()
            return x.sum()

        mean, var = torch.zeros(10).double(), torch.ones(10).double()
        gradient = tl.grad(f, **options)(LONG.reshape(30, 10), mean, var)
        assert not torch.equal(var, torch.ones(10))
        return gradient, mean, var

    budget = least(lambda budget: run(memory_budget=budget))
    assert_same(run(memory_budget=budget), run())


def test_returned_tensors_may_be_written_to():
    def f(x):
        values = [x.exp()]
        for _ in range(5):
            values.append(values[-1].sin().exp())
        return values[-1].sum(), values[:-1]

    _, vjp_fn, values = tl.vjp(f, LONG, has_aux=True, memory_budget=0.9)
    for value in values:
        value.mul_(2)
    assert_same(vjp_fn(ONE), tl.vjp(f, LONG, has_aux=True)[1](ONE))


def test_write_to_a_captured_tensor_after_the_call_is_an_error():
    scale = LONG.clone()
    _, vjp_fn = tl.vjp(lambda x: (x.sin() * scale).exp().sum(), LONG, memory_budget=1.0)
    scale.mul_(2)
    with pytest.raises(RecomputationError, match="has since been modified in place"):
        vjp_fn(ONE)


def test_a_gradient_by_torch_autograd_inside():
    def f(x):
        y = x.sin().exp()
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return (g * y).sum()

    assert_same(tl.grad(within_the_least(f))(LONG), tl.grad(f)(LONG))


def test_checkpoints_and_budgets_inside():
    inner = tl.checkpoint(chain_of_vectors)

    def f(x):
        y = inner(chain_of_vectors(x))
        return (tl.grad(sum_of_chain, memory_budget=0.3)(y) * inner(y)).sum()

    def plain(x):
        y = chain_of_vectors(chain_of_vectors(x))
        return (tl.grad(sum_of_chain)(y) * chain_of_vectors(y)).sum()

    assert_same(tl.grad(f, memory_budget=0.4)(LONG), tl.grad(plain)(LONG))
    assert_same(tl.grad(tl.checkpoint(f))(LONG), tl.grad(plain)(LONG))


def test_tensors_of_inference_mode():
    with torch.inference_mode():
        scale = torch.linspace(0, 1, 300, dtype=torch.float64)

    def f(x):
        for _ in range(5):
            x = (x.sin().exp() + scale).tanh()
        return x.sum()

    assert_same(tl.grad(within_the_least(f))(LONG), tl.grad(f)(LONG))


def test_complex_views():
    def f(x):
        for _ in range(4):
            x = (x.conj() * x.mT.conj() / 9).exp().mH.contiguous().sin() / 9
        return torch.view_as_real(x).square().sum()

    x = torch.complex(LONG, LONG.flip(0))[:289].reshape(17, 17)
    assert_same(tl.grad(within_the_least(f))(x), tl.grad(f)(x))


def test_many_threads_at_once():
    transform = tl.grad(sum_of_chain, memory_budget=0.4)
    inputs = [LONG * i for i in range(4)]
    found = [[] for _ in inputs]

    def work(i):
        for _ in range(10):
            found[i].append(transform(inputs[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, results in zip(inputs, found, strict=True):
        for result in results:
            assert_same(result, tl.grad(sum_of_chain)(x))


def test_half_precision_and_autocast():
    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for _ in range(5):
                x = F.linear(x, torch.eye(30)).tanh() * 2.0
        return x.float().sum()

    x = LONG.float().reshape(10, 30)
    assert_same(tl.grad(within_the_least(f))(x), tl.grad(f)(x))


@pytest.mark.sweep
@pytest.mark.parametrize("record", RECORDINGS.values(), ids=RECORDINGS)
def test_budget_is_ignored_in_a_capture(record):
    found = record(tl.grad(sum_of_chain, memory_budget=0.3))(LONG)
    assert_same(found, tl.grad(sum_of_chain)(LONG), exactly=False)


# Memory use, and amount of recomputation.


STEPS = 64


def equal_steps(x):
    for _ in range(STEPS):
        x = x.tanh()  # each saves its result
    return x.sum()


def recomputed_and_peak(budget):
    """For a budget in tensors: returns how many tanhs are recomputed, and the peak in tensors."""
    x = torch.linspace(-1, 1, 4096)
    transform = tl.grad(equal_steps, memory_budget=budget * x.nbytes)
    transform(x)  # makes a plan
    with Counted() as counted, PeakMemory() as memory:
        transform(x)
    return counted.count["tanh"] - STEPS, memory.peak / x.nbytes


# Besides saved values, a reverse pass holds an incoming and an outgoing cotangent.
COTANGENTS = 2


def test_chain_with_square_root_budget():
    """Eight saved steps, with eight steps between two of them: each reruns at most once."""
    recomputed, peak = recomputed_and_peak(2 * math.isqrt(STEPS))
    assert recomputed <= STEPS
    assert peak <= 1.1 * (2 * math.isqrt(STEPS) + COTANGENTS)


def test_values_that_cannot_be_recomputed_count_towards_the_budget():
    """Each of the eight products saves its random factor."""

    def f(x):
        for _ in range(8):
            x = x.tanh() * torch.rand_like(x)
        return x.sum()

    with pytest.raises(MemoryBudgetError, match="at least") as error:
        tl.grad(f, memory_budget=8 * LONG.nbytes)(LONG)
    assert 8 * LONG.nbytes < error.value.least < 16 * LONG.nbytes


def binomial(steps, snapshots):
    """Returns how often steps run in total, by Griewank and Walther's formula."""
    repetitions = 0
    while math.comb(snapshots + repetitions, snapshots) < steps:
        repetitions += 1
    return repetitions * steps - math.comb(snapshots + repetitions, snapshots + 1)


@pytest.mark.parametrize("budget", [STEPS // 10, 12])
def test_chain_with_a_tenth_matches_binomial_checkpointing(budget):
    recomputed, peak = recomputed_and_peak(budget)
    assert recomputed <= 1.1 * (binomial(STEPS, budget) - (STEPS - 1))
    assert peak <= 1.1 * (budget + COTANGENTS)


def test_full_budget_recomputes_nothing():
    assert recomputed_and_peak(STEPS)[0] == 0


def test_first_call_runs_each_operator_at_most_once_more():
    x = torch.linspace(-1, 1, 4096)
    with Counted() as counted:
        tl.grad(equal_steps, memory_budget=20 * x.nbytes)(x + 0)
    again = counted.count["tanh"] - STEPS
    assert again <= STEPS + recomputed_and_peak(20)[0]


EYE = torch.eye(256)


def products(x):
    for _ in range(6):
        x = (x @ EYE).tanh().exp().sin()
    return x.sum()


def test_cheap_operators_are_recomputed_before_products():
    transform = tl.grad(products, memory_budget=0.7)
    x = torch.linspace(-1, 1, 4096).reshape(16, 256)
    transform(x)
    with Counted() as within:
        transform(x)
    with Counted() as without:
        tl.grad(products)(x)
    assert within.count["mm"] == without.count["mm"]
    assert within.count["tanh"] + within.count["exp"] > without.count["tanh"] + without.count["exp"]


def test_memory_is_freed_after_the_gradient():
    seen = []

    def f(x):
        y = x * 2
        seen.append(weakref.ref(_C.holder_of(y).untyped_storage()))
        return (y.sin().exp() * torch.rand_like(y)).sum()

    gc.disable()
    try:
        tl.grad(within_the_least(f))(torch.ones(300))
        assert all(memory() is None for memory in seen)
    finally:
        gc.enable()
