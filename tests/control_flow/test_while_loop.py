"""while_loop and fori_loop: the trips of each sample, and what is rejected."""

import pytest
import torch

import torchlayers as tl

WAYS = pytest.mark.parametrize("batched", ["hold", "drop"])
X = torch.tensor([0.5, 2.0, 12.0], dtype=torch.float64)


def halvings(x, batched="hold"):
    return tl.while_loop(
        lambda c: c["x"] > 1,
        lambda c: {"x": c["x"] / 2, "n": c["n"] + 1},
        {"x": x, "n": torch.tensor(0)},
        batched=batched,
    )


@WAYS
def test_each_sample_makes_its_own_trips(batched):
    end = tl.vmap(lambda x: halvings(x, batched))(X)
    assert end["n"].tolist() == [0, 1, 4]
    torch.testing.assert_close(end["x"], X / 2 ** end["n"])


@WAYS
def test_reverse_mode_records_the_trips(batched):
    slopes = tl.vmap(tl.grad(lambda x: halvings(x, batched)["x"].square()))(X)
    torch.testing.assert_close(slopes, 2 * X / torch.tensor([1.0, 4.0, 256.0]))


@WAYS
def test_finished_samples(batched):
    """With "hold", finished samples run along; with "drop", they don't."""
    sizes = []

    def body(x):
        sizes.append(tl.current_stack()[-1].metadata["batch_size"])
        return x / 2

    tl.vmap(lambda x: tl.while_loop(lambda x: x > 1, body, x, batched=batched))(X)
    assert sizes == ([3, 3, 3, 3] if batched == "hold" else [2, 1, 1, 1])


@WAYS
def test_no_trip_at_all(batched):
    f = tl.vmap(lambda x: tl.while_loop(lambda x: x > 99, lambda x: 1 / 0, x, batched=batched))
    torch.testing.assert_close(f(X), X)


@WAYS
def test_a_carry_that_becomes_batched_on_the_way(batched):
    """The predicate is unbatched at first, then batched at one level, then at two."""
    xs, ys = torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0.5, 3.0])

    def g(x, y):
        def body(total):
            return tl.cond(total == 0, lambda: total + x, lambda: total + y)

        return tl.while_loop(lambda c: c < 4, body, torch.tensor(0.0), batched=batched)

    def alone_g(x, y):
        total = 0.0
        while total < 4:
            total = total + (x if total == 0 else y)
        return total

    both = tl.vmap(lambda x: tl.vmap(lambda y: g(x, y))(ys))(xs)
    expected = [[alone_g(x, y) for y in ys.tolist()] for x in xs.tolist()]
    torch.testing.assert_close(both, torch.tensor(expected))


@WAYS
def test_derivatives_per_sample_by_shared_tensors(batched):
    w = torch.tensor([0.5, 0.7], dtype=torch.float64)

    def f(w, x):
        end = tl.while_loop(
            lambda c: c[0] > 1, lambda c: (c[0] * w.prod() * 2, c[1]), (x, w), batched=batched
        )
        return end[0] * end[1].sum()

    def alone(w, x):
        y = x
        while y > 1:
            y = y * w.prod() * 2
        return y * w.sum()

    slopes = tl.vmap(tl.grad(f), in_dims=(None, 0))(w, X)
    torch.testing.assert_close(slopes, torch.stack([tl.grad(alone)(w, x) for x in X]))


@WAYS
def test_carry_with_shared_tensors_numbers_and_none(batched):
    """w is shared by all samples, also at the end; n is a Python number."""

    def f(x, w):
        def body(carry):
            x, w, n, none = carry
            return x / 2, w, n + 1, none

        return tl.while_loop(lambda c: c[0] > 1, body, (x, w, 0, None), batched=batched)

    _, w, n, none = tl.vmap(f, in_dims=(0, None), out_dims=(0, 0, 0, None))(X, torch.tensor(3.0))
    assert w.tolist() == [3, 3, 3] and n.tolist() == [0, 1, 4] and none is None


@WAYS
def test_the_cond_may_capture_and_differ(batched):
    limits = torch.tensor([1.0, 1.0, 5.0])
    f = tl.vmap(
        lambda x, limit: tl.while_loop(lambda x: x > limit, lambda x: x / 2, x, batched=batched)
    )
    torch.testing.assert_close(f(X.float(), limits), torch.tensor([0.5, 1.0, 3.0]))


@WAYS
def test_a_cond_that_returns_a_bool_of_python(batched):
    count = []

    def goes_on(x):
        count.append(1)
        return len(count) < 4

    assert tl.while_loop(goes_on, lambda x: 2 * x, torch.tensor(1.0), batched=batched) == 8


def test_a_loop_in_python_is_plain_operators():
    x = torch.tensor(12.0, requires_grad=True)
    end = tl.while_loop(lambda x: x > 1, lambda x: x / 2, x)
    torch.testing.assert_close(torch.autograd.grad(end, x)[0], torch.tensor(1 / 16))


UNLIKE = {
    "structure": (
        lambda c: [c[0], c[1]],
        r"structure of init, \(\*, \*\), but returned \[\*, \*\]",
    ),
    "shape": (lambda c: (c[0], c[1].expand(2)), r"the carry's \[1\] was of shape \(\)"),
    "dtype": (
        lambda c: (c[0].float(), c[1]),
        r"\[0\] was of shape \(\) and dtype torch.float64 and is now of shape \(\) and dtype "
        r"torch.float32. Start with torch.float32",
    ),
    "kind": (lambda c: (c[0], "x"), r"is now of type str"),
}


@pytest.mark.parametrize("name", UNLIKE)
@pytest.mark.parametrize("batched", ["hold", "drop", None])
def test_error_for_a_changed_carry_names_the_leaf(name, batched):
    body, says = UNLIKE[name]

    def f(x):
        return tl.while_loop(lambda c: c[0] > 1, body, (x, x), batched=batched or "hold")

    with pytest.raises(tl.errors.StructureError, match=says):
        f(X[2]) if batched is None else tl.vmap(f)(X)
    assert tl.current_stack() == ()


@pytest.mark.parametrize(
    ("cond_fn", "says"),
    [
        (lambda x: x, "got a tensor of dtype torch.float64"),
        (lambda x: x.expand(2) > 0, r"got a tensor of shape \(2,\)"),
        (lambda x: None, "got NoneType"),
    ],
    ids=["dtype", "shape", "None"],
)
def test_a_cond_that_returns_no_bool(cond_fn, says):
    for run in (lambda f: f(X[2]), lambda f: tl.vmap(f)(X)):
        with pytest.raises(tl.errors.TransformError, match=f"the result of cond_fn.*{says}"):
            run(lambda x: tl.while_loop(cond_fn, lambda x: x, x))


@WAYS
def test_an_error_in_the_body_leaves_the_stack_as_it_was(batched):
    def body(x):
        raise KeyError("here")

    with pytest.raises(KeyError):
        tl.vmap(tl.grad(lambda x: tl.while_loop(lambda x: x > 1, body, x, batched=batched)))(X)
    assert tl.current_stack() == ()


def test_write_to_a_captured_tensor_is_rejected():
    def f(x, total):
        def body(x):
            total.add_(x)
            return x / 2

        return tl.while_loop(lambda x: x > 1, body, x)

    with pytest.raises(tl.errors.TransformError, match=r"writes \(add_\)"):
        tl.vmap(f)(X, torch.zeros(3, dtype=X.dtype))


def test_fori_loop_counts_in_python_where_it_can():
    seen = []
    tl.fori_loop(2, 5, lambda i, x: seen.append(i) or x, torch.ones(()))
    assert seen == [2, 3, 4]
    assert tl.fori_loop(3, 3, lambda i, x: 1 / 0, 7) == 7


@WAYS
def test_fori_loop_with_batched_bounds(batched):
    lower, upper = torch.tensor([0, 2, 5]), torch.tensor([3, 2, 7])

    def f(a, b):
        return tl.fori_loop(a, b, lambda i, x: x + i, torch.tensor(0), batched=batched)

    assert tl.vmap(f)(lower, upper).tolist() == [3, 0, 11]
    assert tl.vmap(f, in_dims=(None, 0))(torch.tensor(1), upper).tolist() == [3, 1, 21]


@pytest.mark.parametrize(
    "bound", [1.0, torch.tensor(1.0), torch.tensor([1, 2]), torch.tensor(True)]
)
def test_fori_loop_wants_integers(bound):
    with pytest.raises(tl.errors.TransformError, match="fori_loop: upper must be an int"):
        tl.fori_loop(0, bound, lambda i, x: x, torch.ones(()))


@pytest.mark.parametrize(
    "around", [lambda f: f(X[1]), lambda f: tl.vmap(f)(X), lambda f: tl.grad(f)(X[1])]
)
def test_error_for_a_changed_carry_names_the_users_line(around):
    def f(x):
        return tl.while_loop(lambda c: c[0] > 1, lambda c: (c[0] / 2, c[1][None]), (x, x))[0]

    with pytest.raises(tl.errors.StructureError) as error:
        around(f)
    assert "the carry's [1] was of shape () and dtype torch.float64" in str(error.value)
    assert "In test_while_loop.py:" in str(error.value)


@WAYS
@pytest.mark.parametrize(("outer", "inner"), [("same", "different"), ("different", "same")])
def test_random_numbers_in_a_body_follow_each_of_two_vmaps(batched, outer, inner):
    x = torch.linspace(-2, 1, 12).view(4, 3)

    def rows(f):
        torch.manual_seed(0)
        return tl.vmap(tl.vmap(f, randomness=inner), randomness=outer)(x)

    def masked(x):
        for _ in range(20):
            x = torch.where(x < 1, x + torch.rand(()), x)
        return x

    found = rows(
        lambda x: tl.while_loop(lambda x: x < 1, lambda x: x + torch.rand(()), x, batched=batched)
    )
    assert torch.equal(found, rows(masked))
