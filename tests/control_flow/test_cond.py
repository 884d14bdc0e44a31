"""cond and switch: which branch runs, on which samples, and what is rejected."""

import pytest
import torch

import torchlayers as tl

WAYS = pytest.mark.parametrize("batched", ["select", "gather"])
X = torch.tensor([-1.0, 0.0, 4.0], dtype=torch.float64)


@pytest.mark.parametrize("pred", [True, torch.tensor(True), torch.tensor([True])])
def test_unbatched_predicate_runs_one_branch(pred):
    assert tl.cond(pred, lambda x: x + 1, lambda x: 1 / 0, 1) == 2


def test_no_layer_is_entered_where_all_samples_agree():
    seen = []

    def branch(x):
        seen.append(tl.current_stack())
        return x

    tl.vmap(lambda x: tl.cond(x < 9, branch, lambda x: 1 / 0, x))(X)
    assert [len(stack) for stack in seen] == [1]


@WAYS
def test_each_branch_runs_once(batched):
    sizes = []

    def branch(x):
        sizes.append(tl.current_stack()[-1].metadata["batch_size"])
        return x

    tl.vmap(lambda x: tl.cond(x > 0, branch, branch, x, batched=batched))(X)
    assert sorted(sizes) == ([1, 2] if batched == "gather" else [3, 3])


@WAYS
@pytest.mark.parametrize("transform", [tl.grad, tl.jacfwd, lambda f: tl.grad(tl.grad(f))])
def test_branch_not_taken_gives_no_nan(batched, transform):
    """The root's derivative is infinite at 0 and nan below, also for captured tensors."""

    def f(x):
        return tl.cond(x > 0, lambda: x.sqrt(), lambda: x.exp(), batched=batched)

    expected = torch.stack([transform(torch.sqrt if x > 0 else torch.exp)(x) for x in X])
    torch.testing.assert_close(tl.vmap(transform(f))(X), expected)


@WAYS
def test_branch_not_taken_gives_shared_tensors_no_nan(batched):
    def total(w):
        return tl.vmap(
            lambda x: tl.cond(x > 0, lambda: (x * w).log(), lambda: x * w, batched=batched)
        )(X).sum()

    torch.testing.assert_close(tl.grad(total)(torch.tensor(2.0)), torch.tensor(0.5 - 1.0))


@WAYS
def test_branch_does_not_see_samples_of_the_other_branch(batched):
    """The Cholesky decomposition raises an error for matrices of the other branch."""
    matrices = torch.stack([torch.eye(2), -torch.eye(2), 4 * torch.eye(2)])

    def root(a):
        return tl.cond(a.trace() > 0, torch.linalg.cholesky, torch.zeros_like, a, batched=batched)

    torch.testing.assert_close(tl.vmap(root)(matrices)[2], 2 * torch.eye(2))


@WAYS
def test_predicate_of_two_levels_with_operands_of_one(batched):
    xs, ys = torch.randn(4, dtype=torch.float64), torch.randn(3, dtype=torch.float64)

    def f(x, y):
        return tl.cond(x > y, lambda x: x * y, lambda x: x.exp() - y, x, batched=batched)

    both = tl.vmap(lambda x: tl.vmap(lambda y: f(x, y))(ys))(xs)
    table = torch.where(xs[:, None] > ys, xs[:, None] * ys, xs[:, None].exp() - ys)
    torch.testing.assert_close(both, table)
    slopes = tl.vmap(lambda x: tl.vmap(tl.grad(f), in_dims=(None, 0))(x, ys))(xs)
    torch.testing.assert_close(slopes, torch.where(xs[:, None] > ys, ys, xs[:, None].exp()))


@WAYS
@pytest.mark.parametrize("library", [tl, torch.func], ids=["ours", "torch.func"])
def test_derivatives_per_sample_by_shared_tensors(batched, library):
    w = torch.tensor([0.5, -2.0], dtype=torch.float64)

    def f(w, x):
        scaled = w * 3
        return tl.cond(
            x > 0, lambda x: (w * x).sin().sum(), lambda x: scaled.prod() * x, x, batched=batched
        )

    def alone(w, x):
        return (w * x).sin().sum() if x > 0 else (w * 3).prod() * x

    slopes = library.vmap(library.grad(f), in_dims=(None, 0))(w, X)
    torch.testing.assert_close(slopes, torch.stack([tl.grad(alone)(w, x) for x in X]))
    tangents = library.vmap(lambda t, x: library.jvp(lambda w: f(w, x), (w,), (t,))[1])(
        X[:, None] + w, X
    )
    expected = [tl.jvp(lambda w, x=x: alone(w, x), (w,), (x + w,))[1] for x in X]
    torch.testing.assert_close(tangents, torch.stack(expected))


@WAYS
def test_predicate_batched_at_one_of_two_levels(batched):
    """All samples of the other level take the same branch."""
    x = torch.randn(4, 3, dtype=torch.float64)
    flags = torch.tensor([True, False, True, False])

    def row(flag, x):
        return tl.vmap(
            lambda a: tl.cond(flag, lambda a: a.sin() + x.sum(), torch.cos, a, batched=batched)
        )(x)

    expected = torch.where(flags[:, None], x.sin() + x.sum(1, keepdim=True), x.cos())
    torch.testing.assert_close(tl.vmap(row)(flags, x), expected)


@WAYS
def test_in_dims_that_are_not_the_first(batched):
    x = torch.randn(2, 5, dtype=torch.float64)
    f = tl.vmap(lambda x: tl.cond(x[0] > 0, torch.sin, torch.exp, x, batched=batched), 1, 1)
    torch.testing.assert_close(f(x), torch.where(x[0] > 0, x.sin(), x.exp()))


@WAYS
def test_numbers_as_results(batched):
    f = tl.vmap(lambda x: tl.cond(x > 0, lambda: 1.0, lambda: x.float(), batched=batched))
    torch.testing.assert_close(f(X), torch.tensor([-1.0, 0.0, 1.0]))


@WAYS
def test_a_branch_that_returns_what_it_captures(batched):
    y = torch.tensor(7.0, dtype=torch.float64)
    f = tl.vmap(lambda x: tl.cond(x > 0, lambda: x, lambda: y, batched=batched))
    torch.testing.assert_close(f(X), torch.tensor([7.0, 7.0, 4.0], dtype=torch.float64))


@WAYS
def test_integers_and_bools_go_through(batched):
    n = torch.arange(-2, 3)
    f = tl.vmap(
        lambda n: tl.cond(n > 0, lambda: (n * n, n > 1), lambda: (n, n < -1), batched=batched)
    )
    squares, flags = f(n)
    assert squares.tolist() == [-2, -1, 0, 1, 4]
    assert flags.tolist() == [True, False, False, False, True]


@WAYS
@pytest.mark.parametrize("randomness", ["same", "different"])
def test_random_numbers_in_a_branch_follow_the_vmap(batched, randomness):
    x = torch.tensor([1.0, -1.0, 1.0, 1.0])
    f = tl.vmap(
        lambda x: tl.cond(x > 0, lambda: torch.rand(()), lambda: x, batched=batched),
        randomness=randomness,
    )
    drawn = f(x)[[0, 2, 3]]
    assert len(drawn.unique()) == (1 if randomness == "same" else 3)


@WAYS
@pytest.mark.parametrize(("outer", "inner"), [("same", "different"), ("different", "same")])
def test_random_numbers_in_a_branch_follow_each_of_two_vmaps(batched, outer, inner):
    """They are those that the vmaps draw without a branch."""
    x = torch.randn(4, 3)

    def rows(f):
        torch.manual_seed(0)
        return tl.vmap(tl.vmap(f, randomness=inner), randomness=outer)(x)

    found = rows(lambda x: tl.cond(x > 0, lambda: torch.rand(()), lambda: x, batched=batched))
    assert torch.equal(found, rows(lambda x: torch.where(x > 0, torch.rand(()), x)))


def test_branch_follows_the_vmaps_randomness_error():
    with pytest.raises(RuntimeError, match="randomness='error'"):
        tl.vmap(lambda x: tl.cond(x > 0, lambda: torch.rand(()), lambda: x.float()))(X)


@WAYS
@pytest.mark.parametrize(
    "branch",
    [
        lambda x, c: c.add_(1),
        lambda x, c: c.__setitem__(..., 1),
        lambda x, c: torch.sin(x, out=c),
        lambda x, c: torch.Tensor.mul_(c, 2),
    ],
    ids=["add_", "[] =", "out=", "mul_"],
)
def test_writes_to_captured_samples_are_refused(batched, branch):
    with pytest.raises(
        tl.errors.TransformError, match=r"writes .* to a batched tensor from outside"
    ):
        tl.vmap(lambda x, c: tl.cond(x > 0, lambda: branch(x, c), lambda: x, batched=batched))(
            X, X.clone()
        )
    assert tl.current_stack() == ()


def test_functionalize_around_and_inside():
    def f(x):
        y = x.clone()
        y.mul_(2)
        return tl.cond(y > 0, torch.sin, torch.cos, y)

    expected = torch.where(X > 0, (2 * X).sin(), (2 * X).cos())
    torch.testing.assert_close(tl.vmap(tl.functionalize(f))(X), expected)
    torch.testing.assert_close(tl.functionalize(tl.vmap(f))(X), expected)


@WAYS
def test_an_error_in_a_branch_is_raised_as_it_is(batched):
    with pytest.raises(ZeroDivisionError):
        tl.vmap(lambda x: tl.cond(x > 0, lambda: 1 / 0, lambda: x, batched=batched))(X)
    assert tl.current_stack() == ()
    torch.testing.assert_close(X + 1, torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64))


WRONG = {
    "a number": (lambda x: tl.cond(1, torch.sin, torch.cos, x), "got int"),
    "a float tensor": (lambda x: tl.cond(x.sum(), torch.sin, torch.cos, x), "dtype torch.float64"),
    "many": (lambda x: tl.cond(x > 0, torch.sin, torch.cos, x), r"shape \(3,\)"),
    "no function": (
        lambda x: tl.cond(True, torch.sin, 3, x),
        "false_fn must be a function, but is of type int",
    ),
    "a way": (
        lambda x: tl.cond(True, torch.sin, torch.cos, x, batched="both"),
        "must be 'select' or 'gather', got 'both'",
    ),
    "no branches": (lambda x: tl.switch(0, [], x), "there are no branches"),
    "a bool as index": (lambda x: tl.switch(x[0] > 0, [torch.sin], x), "dtype torch.bool"),
    "a list as index": (lambda x: tl.switch([0], [torch.sin], x), "got list"),
    "an index of many": (lambda x: tl.switch(x.long(), [torch.sin], x), r"shape \(3,\)"),
    "a branch of switch": (
        lambda x: tl.switch(0, [torch.sin, None], x),
        r"branches\[1\] must be a function",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    f, says = WRONG[name]
    with pytest.raises(tl.errors.TransformError, match=says):
        f(X)


UNLIKE = {
    "structures": (lambda x: (x, x), lambda x: [x, x], r"false_fn returned \[\*, \*\], true_fn"),
    "shapes": (lambda x: x, lambda x: x.expand(2), r"\(2,\) and dtype torch.float64 in false_fn"),
    "dtypes": (
        lambda x: {"a": x.float()},
        lambda x: {"a": x},
        r"the result's \['a'\] is of shape \(\) and dtype torch.float64 in false_fn, but of shape "
        r"\(\) and dtype torch.float32 in true_fn",
    ),
    "None": (lambda x: None, lambda x: x, "the same shapes and dtypes"),
}


@WAYS
@pytest.mark.parametrize("name", UNLIKE)
def test_branches_with_different_results_are_rejected(name, batched):
    true_fn, false_fn, says = UNLIKE[name]
    with pytest.raises(tl.errors.StructureError, match=says):
        tl.vmap(lambda x: tl.cond(x > 0, true_fn, false_fn, x, batched=batched))(X)
    assert tl.current_stack() == ()


@pytest.mark.parametrize("index", [-3, 0, 1, 2, 7])
@pytest.mark.parametrize("kind", [int, torch.tensor])
def test_out_of_range_index_is_clamped(index, kind):
    branches = [lambda: "first", lambda: "second", lambda: "third"]
    expected = branches[min(max(index, 0), 2)]()
    assert tl.switch(kind(index), branches) == expected


@WAYS
def test_out_of_range_batched_index_is_clamped(batched):
    index = torch.tensor([-5, 0, 1, 2, 9])
    branches = [lambda x: x, lambda x: 10 * x, lambda x: 100 * x]
    f = tl.vmap(lambda i, x: tl.switch(i, branches, x, batched=batched), in_dims=(0, None))
    assert f(index, torch.tensor(1.0)).tolist() == [1, 1, 10, 100, 100]


@WAYS
def test_a_batch_of_more_than_one_pass(batched):
    """More elements than the layers compute directly, without calling operators."""
    x = torch.linspace(-2, 2, 1000, dtype=torch.float64)

    def f(x):
        return tl.cond(x > 0.3, lambda: x.sin() * x, lambda: x.exp(), batched=batched)

    expected = torch.where(x > 0.3, x.sin() + x * x.cos(), x.exp())
    torch.testing.assert_close(tl.vmap(tl.grad(f))(x), expected)


def test_the_error_for_an_if_names_what_to_use():
    with pytest.raises(RuntimeError, match=r"Use torchlayers\.cond, torchlayers\.while_loop"):
        tl.vmap(lambda x: x if x > 0 else -x)(X)
