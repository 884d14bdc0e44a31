"""Evaluation in chunks: chunk_size, memory_budget and progress."""

import functools
import itertools

import numpy as np
import pytest
import torch
import torch.func

import torchlayers as tl
from tests.support.calls import ambient
from torchlayers.memory import PeakMemory
from torchlayers.transforms import chunking

X = torch.linspace(0.1, 1.0, 50 * 16).reshape(50, 16)


def outer_sum(x):
    """Takes two 16 x 16 matrices per sample, and returns 16 numbers."""
    return (x.unsqueeze(0) * x.unsqueeze(1)).sin().sum(0)


TRANSFORMS = {
    "vmap": lambda **options: tl.vmap(outer_sum, **options)(X),
    "jacrev": lambda **options: tl.jacrev(outer_sum, **options)(X[0]),
    "jacfwd": lambda **options: tl.jacfwd(outer_sum, **options)(X[0]),
    "hessian": lambda **options: tl.hessian(outer_sum, **options)(X[0]),
}
transforms = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)


def peak_of(action):
    with PeakMemory() as memory:
        result = action()
    return memory.peak, result


# Functions that take this many bytes for n samples, and the chunk sizes that `run` chooses.

LINEAR = {
    "so much a sample": lambda n: 100 * n,
    "little a sample": lambda n: n,
    "a fixed part": lambda n: 900 + 10 * n,
    "mostly fixed": lambda n: 990 + n,
    "the larger of two parts": lambda n: max(900, 100 * n),
}
SUPERLINEAR = {
    "quadratic": lambda n: n * n,
    "cubic": lambda n: n**3,
    "one sample at a time": lambda n: 800 * n,
    "a jump at 3": lambda n: 10 * n + 5000 * (n >= 3),
    "a jump at 5": lambda n: 10 * n + 5000 * (n >= 5),
    "a jump at 20": lambda n: 10 * n + 5000 * (n >= 20),
    "a jump after a fixed part": lambda n: 500 + n + 5000 * (n >= 60),
}
BUDGET = 1000


def sizes_chosen(taken, total=1000, budget=BUDGET):
    """The sizes of the chunks of `total` samples."""

    def work(start, size):
        torch.empty(taken(size), dtype=torch.uint8)
        return start, size

    results = chunking.run(work, total, "auto", budget, torch.device("cpu"), False, "work")
    starts, sizes = zip(*results, strict=True)
    assert list(starts) == [0, *itertools.accumulate(sizes)][:-1]
    assert sum(sizes) == total
    return sizes


@pytest.mark.parametrize("taken", (LINEAR | SUPERLINEAR).values(), ids=LINEAR | SUPERLINEAR)
def test_sizes_grow_at_most_eightfold(taken):
    sizes = sizes_chosen(taken)
    assert sizes[0] == 1
    for i in range(1, len(sizes)):
        assert sizes[i] <= 8 * max(sizes[:i])


@pytest.mark.parametrize("name", LINEAR)
def test_memory_stays_within_the_budget(name):
    """Within twice the budget where memory grows unevenly: NOTE [Finding the chunk size]."""
    allowed = 2 * BUDGET if name == "the larger of two parts" else BUDGET
    assert max(map(LINEAR[name], sizes_chosen(LINEAR[name]))) <= allowed


@pytest.mark.parametrize("taken", LINEAR.values(), ids=LINEAR)
def test_sizes_grow_to_what_the_budget_allows(taken):
    largest = max(n for n in range(1, 1001) if taken(n) <= BUDGET)
    assert 0.75 * largest <= sizes_chosen(taken, total=5000)[-2] <= largest


@pytest.mark.parametrize("taken", SUPERLINEAR.values(), ids=SUPERLINEAR)
def test_memory_that_grows_faster_exceeds_the_budget_once_at_most(taken):
    exceeding = [size for size in sizes_chosen(taken) if taken(size) > BUDGET]
    assert len(exceeding) <= 1


@pytest.mark.parametrize("taken", SUPERLINEAR.values(), ids=SUPERLINEAR)
def test_after_a_jump_sizes_are_not_needlessly_small(taken):
    largest = max(n for n in range(1, 1001) if taken(n) <= BUDGET)
    sizes = sizes_chosen(taken, total=5000)
    assert sizes[-2] >= largest / 10


def test_samples_larger_than_the_budget_run_one_at_a_time():
    assert sizes_chosen(lambda n: 2 * BUDGET * n, total=5) == (1,) * 5


def test_chunks_grow_eightfold_without_memory_use():
    assert sizes_chosen(lambda n: 0, budget=10**9) == (1, 2, 16, 128, 853)


def test_the_default_budget_is_half_of_what_is_free():
    with open("/proc/meminfo") as lines:
        (available,) = (int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    budget = chunking.default_budget(torch.device("cpu"))
    assert budget == pytest.approx(available * 1024 / 2, rel=0.4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU's memory needs a GPU")
def test_the_default_budget_is_half_of_what_is_free_on_the_gpu():
    device = torch.device("cuda")
    free, _ = torch.cuda.mem_get_info(device)
    assert chunking.default_budget(device) == pytest.approx(free / 2, rel=0.2)


# The transforms


@pytest.mark.parametrize("budget", [1, 8_000, 20_000, 60_000, 10**9, None])
@transforms
def test_the_result_does_not_depend_on_the_budget(transform, budget):
    before = ambient()
    result = transform(chunk_size="auto", memory_budget=budget)
    assert ambient() == before
    torch.testing.assert_close(result, transform())


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 16, 49, 50, 51, 1000])
@transforms
def test_the_result_does_not_depend_on_the_chunk_size(transform, chunk_size):
    torch.testing.assert_close(transform(chunk_size=chunk_size), transform())


@pytest.mark.parametrize("samples", [2, 5, 10])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_measured_memory_is_within_the_budget_apart_from_results(name, samples):
    budget = samples * peak_of(lambda: TRANSFORMS[name](chunk_size=1))[0]
    peak, result = peak_of(lambda: TRANSFORMS[name](chunk_size="auto", memory_budget=budget))
    # The result exists in parts, and once more when the parts are joined.
    results = 2 * result.untyped_storage().nbytes()
    # The Jacobians run their function once beforehand and keep its residuals.
    saved = peak_of(lambda: tl.vjp(outer_sum, X[0]))[0] if name != "vmap" else 0
    assert peak <= budget + results + saved


def test_memory_is_used_up_to_the_budget():
    seen = []

    def f(x):
        seen.append(tl.current_stack()[0].metadata["batch_size"])
        return outer_sum(x)

    x = torch.rand(400, 16)
    one = peak_of(lambda: tl.vmap(outer_sum)(x[:1]))[0]
    ten = peak_of(lambda: tl.vmap(outer_sum)(x[:10]))[0]
    budget = ten + (ten - one) // 18  # enough for 10.5 samples
    tl.vmap(f, chunk_size="auto", memory_budget=budget)(x)
    assert seen[:2] == [1, 2]
    assert set(seen[2:-1]) == {10}


@pytest.mark.parametrize("options", [{"chunk_size": 7}, {"chunk_size": "auto"}, {"progress": True}])
def test_same_randomness_over_chunks(options):
    def draw(x):
        return x + torch.randn(3) + torch.rand(()), torch.randperm(4)

    def run(**options):
        torch.manual_seed(0)
        x = torch.zeros(50)
        return *tl.vmap(draw, randomness="same", **options)(x), torch.rand(2)

    for got, expected in zip(run(**options), run(), strict=True):
        assert torch.equal(got, expected)


def test_different_randomness_over_chunks():
    draw = functools.partial(tl.vmap, lambda x: x + torch.rand(()), randomness="different")
    for options in ({"chunk_size": 7}, {"chunk_size": "auto"}):
        assert len(draw(**options)(torch.zeros(50)).unique()) == 50


@pytest.mark.parametrize("options", [{"chunk_size": 3}, {"chunk_size": "auto"}])
def test_chunks_inside_other_transforms(options):
    def f(x):
        return tl.vmap(torch.sin, **options)(x).prod()

    plain = lambda x: x.sin().prod()  # noqa: E731
    x = X[:7, 0].double()
    for transform in (tl.grad, lambda f: lambda x: tl.jvp(f, (x,), (x,)), tl.hessian):
        torch.testing.assert_close(transform(f)(x), transform(plain)(x))
    xs = torch.stack([x, x + 1])
    torch.testing.assert_close(tl.vmap(f)(xs), tl.vmap(plain)(xs))


def test_an_exception_in_a_chunk_leaves_nothing_behind():
    before = ambient()
    calls = []

    def f(x):
        calls.append(x)
        return x if len(calls) < 3 else 1 / 0

    with pytest.raises(ZeroDivisionError):
        tl.vmap(f, chunk_size="auto", progress=True)(torch.ones(30))
    assert ambient() == before


# Progress bars


@pytest.mark.parametrize("options", [{}, {"chunk_size": 6}, {"chunk_size": "auto"}])
@pytest.mark.parametrize(
    ("name", "total", "label"),
    [
        ("vmap", 50, "vmap(outer_sum)"),
        ("jacrev", 16, "jacrev"),
        ("jacfwd", 16, "jacfwd"),
        ("hessian", 16, "hessian"),
    ],
)
def test_a_bar_goes_to_stderr(capsys, name, total, label, options):
    TRANSFORMS[name](progress=True, **options)
    out, err = capsys.readouterr()
    assert out == ""
    assert label in err
    assert "100%" in err
    assert f"{total}/{total}" in err


@transforms
def test_without_progress_nothing_is_written(capsys, transform):
    transform(chunk_size=3)
    assert capsys.readouterr() == ("", "")


# Errors


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("chunk_size", [0, -1, 2.0, "all", True, (3,)])
def test_invalid_chunk_size_is_rejected(name, chunk_size):
    with pytest.raises((ValueError, TypeError), match=r"chunk_size must be None, 'auto' or an int"):
        TRANSFORMS[name](chunk_size=chunk_size)


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("budget", [0, -5])
def test_invalid_memory_budget_is_rejected(name, budget):
    with pytest.raises(ValueError, match="memory_budget must be a number of bytes greater than 0"):
        TRANSFORMS[name](chunk_size="auto", memory_budget=budget)


@pytest.mark.parametrize("name", ["vmap", "jacfwd"])
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_memory_budget_without_auto_is_rejected(name, chunk_size):
    with pytest.raises(ValueError, match="memory_budget requires chunk_size='auto'"):
        TRANSFORMS[name](chunk_size=chunk_size, memory_budget=1000)


# PeakMemory


def test_peak_memory_counts_simultaneous_allocations():
    def action():
        for _ in range(5):
            torch.ones(100)  # freed in each iteration
        kept = [torch.ones(100) for _ in range(3)]
        return kept[0].view(10, 10), kept[1][5:], kept[2].add_(1)

    assert peak_of(action)[0] == 3 * 400


def test_peak_memory_excludes_earlier_allocations():
    x = torch.ones(100)
    assert peak_of(lambda: x.view(10, 10).mul_(2).t())[0] == 0


def test_peak_memory_includes_allocations_inside_transforms():
    def action():
        return tl.vmap(tl.grad(lambda x: x.exp().sum()))(torch.ones(4, 100))

    assert peak_of(action)[0] >= 2 * 1600


def test_a_numpy_integer_is_a_chunk_size():
    doubled = tl.vmap(lambda x: x * 2, chunk_size=np.int64(2))(torch.ones(5))
    torch.testing.assert_close(doubled, torch.full((5,), 2.0))
