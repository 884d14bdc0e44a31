"""scan, associative_scan and map: slices, their order, and what is rejected."""

import math

import pytest
import torch
from torch.utils._pytree import tree_map

import torchlayers as tl
from torchlayers.errors import (
    CallError,
    DimensionError,
    NotTensorError,
    OutputError,
    StructureError,
    TransformError,
)
from torchlayers.memory import PeakMemory

X = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


def running(total, x):
    return total + x, total * x


@pytest.mark.parametrize("reverse", [False, True])
def test_the_ys_are_in_the_order_of_the_xs(reverse):
    last, ys = tl.scan(running, torch.tensor(1.0, dtype=X.dtype), X, reverse=reverse)
    assert last == 7
    assert ys.tolist() == ([6, 8, 3] if reverse else [1, 4, 12])


def test_pytrees_go_through():
    def step(carry, x):
        return {"c": carry["c"] + x["a"]}, (x["b"][0] * carry["c"], None)

    xs = {"a": X, "b": [torch.ones(3, 2, dtype=X.dtype)]}
    last, (ys, none) = tl.scan(step, {"c": X[0]}, xs)
    assert last["c"] == 7 and ys[:, 0].tolist() == [1, 2, 4] and none is None


def test_a_length_without_xs():
    assert tl.scan(lambda n, x: (n + 1, x), 0, length=4) == (4, None)


@pytest.mark.parametrize("library", [tl, torch.func], ids=["ours", "torch.func"])
@pytest.mark.parametrize("dims", [(0, 1, 0), (0, None, None), (0, 1, None), (0, None, 0)], ids=str)
def test_vmap_over_init_xs_and_captured_tensors(library, dims):
    init, xs, w = torch.randn(2, 3), torch.randn(4, 2, 3), torch.randn(2, 3)
    given = [t if d is not None else t.select(1 if t is xs else 0, 0)
             for t, d in zip((init, xs, w), dims, strict=True)]  # fmt: skip

    def f(init, xs, w):
        return tl.scan(lambda c, x: ((c * x * w).sin(), c + w), init, xs)

    def alone(i):
        c, xs, w = (t if d is None else t.select(d, i) for t, d in zip(given, dims, strict=True))
        ys = []
        for x in xs:
            ys.append(c + w)
            c = (c * x * w).sin()
        return c, torch.stack(ys)

    samples = zip(alone(0), alone(1), strict=True)
    for ours, theirs in zip(library.vmap(f, dims)(*given), samples, strict=True):
        torch.testing.assert_close(ours, torch.stack(theirs))


def test_no_slices():
    last, ys = tl.scan(lambda c, x: (c, {"y": x.expand(2, 3)}), X, torch.ones(0, 3))
    assert last is X and ys["y"].shape == (0, 2, 3)
    assert tl.scan(lambda c, x: (c, None), 3, length=0) == (3, None)
    assert tl.map(lambda x: (x, x.sum()), torch.ones(0, 3))[1].shape == (0,)
    assert tl.associative_scan(torch.add, torch.ones(0, 3)).shape == (0, 3)


REFUSED = {
    "no length": (lambda: tl.scan(running, X, None), TransformError, "length must be given"),
    "a negative length": (lambda: tl.scan(running, X, length=-1), TransformError, "negative"),
    "another length": (lambda: tl.scan(running, X, X, 4), DimensionError, "length is 4, but xs"),
    "lengths": (
        lambda: tl.scan(running, X, {"a": X, "b": X[1:]}),
        DimensionError,
        r"xs\['a'\] has 3 and xs\['b'\] has 2",
    ),
    "a scalar": (lambda: tl.scan(running, X, X[0]), DimensionError, "xs has no dimensions"),
    "a number": (lambda: tl.scan(running, X, [1.0]), NotTensorError, r"xs\[0\] must be a tensor"),
    "no pair": (lambda: tl.scan(lambda c, x: c, X[0], X), OutputError, "returned Tensor"),
    "a triple": (lambda: tl.scan(lambda c, x: (c, c, c), X[0], X), OutputError, "a tuple of 3"),
    "a carry's shape": (
        lambda: tl.scan(lambda c, x: (c.expand(2), x), X[0], X),
        StructureError,
        r"f must keep .* the carry was of shape \(\) and dtype torch.float64 and is now of shape "
        r"\(2,\)",
    ),
    "a carry's structure": (
        lambda: tl.scan(lambda c, x: ((c, c), x), X[0], X),
        StructureError,
        r"\*, but returned \(\*, \*\)",
    ),
    "a carry's dtype": (
        lambda: tl.scan(lambda c, x: ({"n": c["n"] * 0.5}, x), {"n": torch.tensor(1)}, X),
        StructureError,
        r"the carry's \['n'\] was of shape \(\) and dtype torch.int64",
    ),
    "ys of other structure": (
        lambda: tl.scan(lambda c, x: (c + 1, (x,) * c), 1, X),
        StructureError,
        r"returned \(\*,\) and \(\*, \*\)",
    ),
    "ys of other shape": (
        lambda: tl.scan(lambda c, x: (c + 1, x.expand(c)), 1, X),
        StructureError,
        r"\(1,\) and \(2,\)",
    ),
    "ys that are numbers": (lambda: tl.scan(lambda c, x: (c, 1.0), X, X), NotTensorError, "float"),
    "a function": (lambda: tl.scan(None, X, X), CallError, "f must be a function, but is None"),
    "map of a scalar": (lambda: tl.map(torch.sin, X[0]), DimensionError, "map: xs has no dim"),
    "map in no batches": (lambda: tl.map(torch.sin, X, batch_size=0), ValueError, "chunk_size"),
    "associative: a dim": (
        lambda: tl.associative_scan(torch.add, X, 1),
        DimensionError,
        r"dim 1 is out of range for xs 0, of shape \(3,\)",
    ),
    "associative: lengths": (
        lambda: tl.associative_scan(running, (X, X[1:])),
        DimensionError,
        "3 and 2",
    ),
    "associative: other elements": (
        lambda: tl.associative_scan(lambda a, b: (a, b), X),
        StructureError,
        r"an element returned \*, f \(\*, \*\)",
    ),
    "associative: other shapes": (
        lambda: tl.associative_scan(lambda a, b: torch.stack([a, b]), X),
        StructureError,
        "the same shapes and dtypes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_misuse_is_rejected(name):
    call, kind, says = REFUSED[name]
    with pytest.raises(kind, match=says):
        call()
    assert tl.current_stack() == ()


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8, 9, 16, 31])
@pytest.mark.parametrize("reverse", [False, True])
def test_all_partial_results(length, reverse):
    """With matrix products, which do not commute."""
    torch.manual_seed(0)
    matrices = torch.randn(length, 2, 2, dtype=torch.float64)
    found = tl.associative_scan(torch.mm, matrices, reverse=reverse)
    product, expected = None, []
    for matrix in matrices.flip(0) if reverse else matrices:
        product = matrix if product is None else product @ matrix
        expected.append(product)
    expected = torch.stack(expected[::-1] if reverse else expected)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_along_any_dim(dim):
    x = torch.randn(4, 5)
    torch.testing.assert_close(tl.associative_scan(torch.add, x, dim), x.cumsum(dim))


def test_pytrees_are_scanned_together():
    def joined(a, b):
        return {"max": torch.maximum(a["max"], b["max"]), "sum": [a["sum"][0] + b["sum"][0]]}

    x, y = torch.randn(6, 2), torch.randn(6)
    found = tl.associative_scan(joined, {"max": x, "sum": [y]})
    torch.testing.assert_close(found["max"], x.cummax(0).values)
    torch.testing.assert_close(found["sum"][0], y.cumsum(0))


def test_associative_scan_has_logarithmic_depth():
    calls = []

    def add(a, b):
        calls.append(1)
        return a + b

    tl.associative_scan(add, torch.ones(1024))
    assert len(calls) == 2 * 10 - 1


def test_map_batch_size():
    sizes = []

    def f(x):
        stack = tl.current_stack()
        sizes.append(stack[-1].metadata["batch_size"] if stack else None)
        return x.sin(), {"n": x.sum()}

    x = torch.randn(5, 2)
    for batch_size in (None, 2, 9):
        got = tl.map(f, x, batch_size=batch_size)
        torch.testing.assert_close(got, (x.sin(), {"n": x.sum(1)}))
    assert sizes == [None] * 5 + [2, 2, 1] + [5]


def test_derivatives_of_a_long_scan_equal_those_of_a_loop():
    xs = torch.randn(300, 3, dtype=torch.float64)

    def ours(c):
        return tl.scan(lambda c, x: ((c + x).tanh(), c.sum()), c, xs)

    def loop(c):
        ys = []
        for x in xs:
            ys.append(c.sum())
            c = (c + x).tanh()
        return c, torch.stack(ys)

    def total(f):
        return lambda c: sum(leaf.sin().sum() for leaf in f(c))

    c = torch.randn(3, dtype=torch.float64)
    torch.testing.assert_close(tl.grad(total(ours))(c), tl.grad(total(loop))(c))
    torch.testing.assert_close(tl.hessian(total(ours))(c), tl.hessian(total(loop))(c))
    tree_map(torch.testing.assert_close, ours(c), loop(c))


RECOMPUTED = [{"checkpoint": n} for n in (True, 1, 4, 7, 99)]
RECOMPUTED += [{"snapshots": n} for n in (1, 2, 3, 99)]


@pytest.mark.parametrize("recomputed", RECOMPUTED, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_recomputed_steps_give_the_same(recomputed, reverse):
    xs, w = torch.randn(7, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)

    def f(c, w, **options):
        def step(c, x):
            return {"c": (c["c"] * w + x).sin()}, (c["c"] * w, None)

        last, (ys, none) = tl.scan(step, {"c": c}, xs, reverse=reverse, **options)
        assert none is None
        return (last["c"] * 2).sum() + (ys * xs).sum()

    def kept(c, w):
        return f(c, w, **recomputed)

    c = torch.randn(3, dtype=torch.float64)
    torch.testing.assert_close(kept(c, w), f(c, w))
    both = (0, 1)
    torch.testing.assert_close(tl.grad(kept, both)(c, w), tl.grad(f, both)(c, w))
    batch = torch.stack([c, -c])
    for nest in (
        lambda f: tl.vmap(tl.grad(f, both), (0, None))(batch, w),
        lambda f: tl.grad(lambda c: tl.vmap(f, (0, None))(c, w).sum())(batch),
        lambda f: tl.jvp(tl.grad(f), (c, w), (w, c))[1],
    ):
        torch.testing.assert_close(nest(kept), nest(f))


def test_recomputed_steps_run_again_in_reverse_mode():
    calls = []

    def step(c, x):
        calls.append(1)
        return (c * x).sin(), None

    tl.grad(lambda c: tl.scan(step, c, X, checkpoint=2)[0])(X[0])
    assert len(calls) == 6


def test_a_negative_number_of_steps():
    with pytest.raises(TransformError, match="a number of steps, got -1"):
        tl.scan(running, X[0], X, checkpoint=-1)


def steps_in_all(steps, snapshots):
    """Returns how often steps run: Griewank and Walther's formula, plus one run each that saves."""
    repetitions = 0
    while math.comb(snapshots + repetitions, snapshots) < steps:
        repetitions += 1
    return repetitions * steps - math.comb(snapshots + repetitions, snapshots + 1) + steps


@pytest.mark.parametrize("steps", [1, 2, 10, 64])
@pytest.mark.parametrize("snapshots", [1, 2, 3, 6, 100])
def test_recomputed_steps_match_binomial_checkpointing(steps, snapshots):
    calls = []

    def step(c, _):
        calls.append(1)
        return c.sin(), None

    def f(c):
        return tl.scan(step, c, length=steps, snapshots=snapshots)[0]

    def peak(f):
        with PeakMemory() as memory:
            found = tl.grad(lambda c: f(c).sum())(c)
        return memory.peak / c.nbytes, found

    c = torch.linspace(0, 1, 1000)
    plain, wanted = peak(lambda c: tl.scan(lambda c, _: (c.sin(), None), c, length=steps)[0])
    calls.clear()
    most, found = peak(f)
    assert torch.equal(found, wanted)
    assert len(calls) <= steps_in_all(steps, snapshots)
    assert most <= min(plain - steps + snapshots, plain) + 3


def test_invalid_snapshots_are_rejected():
    for options in ({"snapshots": 0}, {"snapshots": 2, "checkpoint": True}):
        with pytest.raises(
            TransformError, match="snapshots must be at least 1, and can't be combined with"
        ):
            tl.scan(running, X[0], X, **options)


def test_error_for_a_changed_carry_names_the_leaf_and_the_users_line():
    def scanned(body):
        return lambda: tl.scan(body, {"a": X[0], "b": X[0]}, X)

    cases = {
        "The carry's ['b'] is gone.": lambda c, x: ({"a": x}, None),
        "The carry's ['c'] is new.": lambda c, x: ({**c, "c": x}, None),
        "The carry's ['b'] is gone, and its ['b'][0] is new.": lambda c, x: ({**c, "b": [x]}, None),
        "the carry's ['b'] was of shape ()": lambda c, x: ({**c, "b": X}, None),
        "is now of shape () and dtype torch.float32": lambda c, x: ({**c, "a": x.float()}, None),
    }
    for words, body in cases.items():
        with pytest.raises(StructureError) as error:
            scanned(body)()
        assert words in str(error.value)
        assert "In test_scan.py:" in str(error.value)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_without_xs_makes_no_list_of_its_steps(reverse):
    def fails(carry, _):
        if carry > 2:
            raise ZeroDivisionError
        return carry + 1, None

    with pytest.raises(ZeroDivisionError):  # and no MemoryError before
        tl.scan(fails, torch.tensor(0.0), length=10**12, reverse=reverse)
