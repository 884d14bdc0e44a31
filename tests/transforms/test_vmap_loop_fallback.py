"""vmap(f, fallback="loop"): functions that need something only a single sample has."""

import warnings

import pytest
import torch

import torchlayers as tl

X = torch.tensor([[1.0, -2.0, 3.0], [-1.0, -2.0, -3.0]], dtype=torch.float64)


def asks_for_a_number(x):
    return x * x.sum().item()


def branches(x):
    if x.sum() > 0:
        return x.sin()
    return x.exp()


def makes_a_list(x):
    return torch.tensor(x.tolist(), dtype=x.dtype) + x


def loops(x):
    while x.abs().sum() > 1:
        x = x / 2
    return x


FUNCTIONS = [asks_for_a_number, branches, makes_a_list, loops]


def looped(f, **options):
    return tl.vmap(f, fallback="loop", **options)


def alone(f, xs=X):
    return torch.stack([f(x) for x in xs])


@pytest.mark.parametrize("f", FUNCTIONS)
def test_each_sample_gets_the_result_it_gets_alone(f):
    with pytest.warns(UserWarning, match="runs one sample at a time, because it asks for"):
        torch.testing.assert_close(looped(f)(X), alone(f))
    assert tl.current_stack() == ()


def grows(x):
    while x.abs().max() < 10:
        x = x * 2
    return x


def compares(x):
    try:
        torch.testing.assert_close(x, X[0])
    except AssertionError:
        return -x
    return x


# Functions that need the value, memory or size of one sample, and operators that no batch can run.
ASKS = {
    "equal": lambda x: 2 * x if torch.equal(x, X[0]) else x,
    "allclose": lambda x: 2 * x if torch.allclose(x, X[0]) else x,
    "is_nonzero": lambda x: 2 * x if torch.is_nonzero(x[0] + 1) else x,
    "bool": lambda x: 2 * x if bool(x[0] > 0) else x,
    "isnan().any()": lambda x: 0 * x if x.log().isnan().any() else x,
    "in": lambda x: 2 * x if 3.0 in x else x,
    "float": lambda x: x * float(x[0]),
    "range": lambda x: x * len(range(x.abs()[2].long())),
    "a list's index": lambda x: x * [5, 6, 7][x[0].long()],
    "sorted": lambda x: torch.stack(sorted(x)),
    "format": lambda x: x * float(f"{x[0]:.3f}"),
    "tolist": lambda x: x * x.tolist()[0],
    "numpy": lambda x: x * float(x.detach().numpy()[0]),
    "torch.tensor of numbers": lambda x: torch.tensor([x[0], x[2]]) * x[:2],
    "data": lambda x: x.data * x,
    "untyped_storage": lambda x: x * (x.untyped_storage().nbytes() > 0),
    "is_contiguous": lambda x: x * x[None, :, None, None].is_contiguous(
        memory_format=torch.channels_last
    ),
    "unique": lambda x: torch.unique(x).sum() * x,
    "unique_consecutive": lambda x: torch.unique_consecutive(x > 0).sum() * x,
    "nonzero": lambda x: (x > 0).nonzero().sum() * x,
    "argwhere": lambda x: torch.argwhere(x > 0).sum() * x,
    "where": lambda x: torch.where(x > 0)[0].sum() * x,
    "masked_select": lambda x: torch.masked_select(x, x > 0).sum() * x,
    "a mask": lambda x: x[x > 0].sum() * x,
    "bincount": lambda x: torch.bincount(x.abs().long()).sum() * x,
    "repeat_interleave": lambda x: x.repeat_interleave(x.abs().long() + (x > 0)).sum() * x,
    "one_hot": lambda x: torch.nn.functional.one_hot(x.abs().long() + (x > 2)).sum() * x,
    "arange": lambda x: torch.arange(x[2].abs()).sum() * x[0],
    "a slice": lambda x: x[: x[0].long()].sum() * x,
    "torch.testing": compares,
    "while": grows,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("f", ASKS.values(), ids=ASKS)
def test_functions_that_need_one_sample_run_in_a_loop(f):
    torch.testing.assert_close(looped(f)(X), alone(f))
    pairs = torch.stack([X, X.flip(0) * 2])
    torch.testing.assert_close(looped(looped(f))(pairs), torch.stack([alone(f, x) for x in pairs]))


# grad alone rejects these too.
NOT_DIFFERENTIATED = {"torch.testing", "numpy", "untyped_storage", "unique", "arange"}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", sorted({*ASKS} - NOT_DIFFERENTIATED))
def test_gradients_of_functions_that_need_one_sample(name):
    f = ASKS[name]
    slope = tl.grad(lambda x: f(x).sum())
    torch.testing.assert_close(looped(slope)(X), alone(slope))
    outside = tl.grad(lambda xs: looped(f)(xs).sum())(X)
    torch.testing.assert_close(outside, tl.grad(lambda xs: alone(f, xs).sum())(X))


def test_the_warning_names_the_line():
    with pytest.warns(UserWarning, match=r"In test_vmap_loop_fallback.py:\d+, `if x.sum\(\) > 0:`"):
        looped(branches)(X)


def test_batchable_functions_run_without_a_loop():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(looped(torch.sin)(X), X.sin())
        assert looped(lambda x: x * 0 + len(tl.current_stack()))(X).unique() == 1


@pytest.mark.parametrize("f", [branches, loops])
@pytest.mark.filterwarnings("ignore:torchlayers:UserWarning")
def test_loop_is_differentiated_from_outside(f):
    slope = tl.grad(lambda x: looped(f)(x).sum())
    torch.testing.assert_close(slope(X), tl.grad(lambda x: alone(f, x).sum())(X))
    tangent = tl.jvp(looped(f), (X,), (X.cos(),))[1]
    torch.testing.assert_close(tangent, tl.jvp(lambda x: alone(f, x), (X,), (X.cos(),))[1])
    x = X.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(looped(f)(x).sum(), x)[0], slope(X))


@pytest.mark.filterwarnings("ignore:torchlayers:UserWarning")
def test_gradients_inside_it():
    torch.testing.assert_close(looped(tl.grad(lambda x: branches(x).sum()))(X), alone(
        tl.grad(lambda x: branches(x).sum())))  # fmt: skip


@pytest.mark.filterwarnings("ignore:torchlayers:UserWarning")
def test_loops_nest():
    nested = looped(lambda x: looped(lambda y: y * x.sum().item() * y.item())(x))(X)
    torch.testing.assert_close(nested, X.square() * X.sum(1, keepdim=True))


@pytest.mark.filterwarnings("ignore:torchlayers:UserWarning")
def test_error_of_an_outer_vmap_is_not_caught():
    """The inner loop could not help: x is batched by both."""
    with pytest.raises(RuntimeError, match=r"calling .item\(\) on a Tensor"):
        tl.vmap(lambda y: looped(lambda x: x * y.item())(X))(torch.ones(2))


@pytest.mark.filterwarnings("ignore:torchlayers:UserWarning")
def test_in_and_out_dims():
    def f(x, scale, power):
        return x * scale["s"] * x.sum().item(), torch.tensor(power)

    out, power = looped(f, in_dims=(1, {"s": 0}, None), out_dims=(-1, None))(
        X, {"s": torch.arange(3.0)}, 2
    )
    torch.testing.assert_close(out, X * torch.arange(3.0) * X.sum(0))
    assert power == 2


@pytest.mark.filterwarnings("ignore:torchlayers:UserWarning")
def test_numbers_become_tensors():
    torch.testing.assert_close(looped(lambda x: x.sum().item())(X.float()), X.sum(1).float())


@pytest.mark.filterwarnings("ignore:torchlayers:UserWarning")
@pytest.mark.parametrize("randomness", ["same", "different"])
def test_random_numbers(randomness):
    torch.manual_seed(0)
    drawn = looped(lambda x: torch.rand(()) + 0 * x.sum().item(), randomness=randomness)(X)
    torch.manual_seed(0)
    first = torch.rand(())
    assert drawn[0] == first
    assert (drawn[1] == first) == (randomness == "same")


@pytest.mark.filterwarnings("ignore:torchlayers:UserWarning")
def test_results_of_different_sizes_are_nested():
    ragged = looped(lambda x: {"kept": x[x > 0], "count": (x > 0).sum()}, out_dims="ragged")(X)
    assert ragged["kept"].is_nested and ragged["kept"].layout == torch.jagged
    expected = [torch.tensor([1.0, 3.0], dtype=X.dtype), torch.tensor([], dtype=X.dtype)]
    for got, its in zip(ragged["kept"].unbind(), expected, strict=True):
        torch.testing.assert_close(got, its)
    assert ragged["count"].tolist() == [2, 0]


@pytest.mark.filterwarnings("ignore:torchlayers:UserWarning")
def test_nested_results_are_differentiated_by_autograd():
    x = X.clone().requires_grad_()
    ragged = looped(lambda x: x[x > 0].square(), out_dims="ragged")(x)
    (gradient,) = torch.autograd.grad(ragged.values().sum(), x)
    torch.testing.assert_close(gradient, 2 * X * (X > 0))


def test_results_of_one_size_are_nested_too_where_that_was_asked_for():
    ragged = looped(torch.sin, out_dims="ragged")(X)
    assert ragged.is_nested
    torch.testing.assert_close(torch.stack(ragged.unbind()), X.sin())


@pytest.mark.filterwarnings("ignore:torchlayers:UserWarning")
@pytest.mark.parametrize(
    "transformed",
    [
        lambda f: tl.grad(lambda x: f(x).values().sum()),
        lambda f: tl.grad(lambda x: (x.sum(), f(x)), has_aux=True),
        lambda f: lambda x: tl.jvp(f, (x,), (x,)),
    ],
    ids=["grad", "aux", "jvp"],
)
@pytest.mark.parametrize("f", [torch.sin, lambda x: x[x > 0]], ids=["of one size", "of several"])
def test_ragged_results_inside_a_transform_are_refused(f, transformed):
    ragged = looped(f, out_dims="ragged")
    with pytest.raises(tl.errors.TransformError, match="'ragged' was used inside a transform"):
        transformed(ragged)(X)
    assert tl.current_stack() == ()


@pytest.mark.filterwarnings("ignore:torchlayers:UserWarning")
def test_different_sizes_without_ragged():
    with pytest.raises(tl.errors.DimensionError, match="out_dims='ragged'"):
        looped(lambda x: x[x > 0])(X)


@pytest.mark.filterwarnings("ignore:torchlayers:UserWarning")
def test_different_structures():
    def f(x):
        return (x,) if x.sum() > 0 else (x, x)

    with pytest.raises(tl.errors.StructureError, match=r"returned \(\*,\) and \(\*, \*\)"):
        looped(f)(X)


@pytest.mark.filterwarnings("ignore:torchlayers:UserWarning")
def test_an_error_in_a_sample_is_raised_as_it_is():
    def f(x):
        if x.sum() < 0:
            raise ZeroDivisionError
        return x

    with pytest.raises(ZeroDivisionError):
        looped(f)(X)
    assert tl.current_stack() == ()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fallback": "lop"}, "fallback must be None or 'loop', got 'lop'"),
        ({"out_dims": "ragged"}, "Pass fallback='loop' too"),
        ({"fallback": "loop", "axis_name": "i"}, "have to run at once"),
    ],
)
def test_conflicting_options_are_rejected(options, says):
    with pytest.raises(tl.errors.TransformError, match=says):
        tl.vmap(torch.sin, **options)
