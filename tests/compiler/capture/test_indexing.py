"""x[i] with a zero-dimensional integer tensor i in compiled functions; torch reads its value."""

import functools

import pytest
import torch

import torchlayers as tl

replayed = functools.partial(tl.compile, backend="replay")

X = torch.linspace(-2, 2, 24, dtype=torch.float64).reshape(4, 3, 2)
PLACES = [torch.tensor(2), torch.tensor(-1), torch.tensor(0, dtype=torch.int32)]


def put(x, i, v):
    y = x.clone()
    y[i] = v
    return y


def put_between(x, i, v):
    y = x.clone()
    y[1, :, None, i % 2] = v[:, :1]
    return y


def put_last(x, i, v):
    y = x.clone()
    y[..., i % 2] = v[None, None, :, 0]
    return y


def put_twice(x, i, v):
    y = x.clone()
    y[i, i % 3] = 5
    y[0, i % 3, 1:] = v[0, 0]
    return y


def moved(x, i, v):
    y = x.clone()
    for k in range(3):
        y[i] = y[i].clone() * v + k
    return y


def put_among(x, i, v):
    y = x.clone()
    y[i, [0, 2]] = v[:2]
    y[[1, 3], i % 3, None] = v[:1]
    y[..., [0, 2], i % 2] = v[0, 0]
    return y


def picked_and_written(x, i, v):
    y = x[i, [0, 2]]  # a copy in eager, too
    return y.mul_(v[:2]) + x[i, :2]


PROGRAMS = {
    "x[i]": lambda x, i, v: x[i],
    "x[i, 1]": lambda x, i, v: x[i, 1] * v,
    "x[1, i]": lambda x, i, v: x[1, i % 3],
    "x[:, i]": lambda x, i, v: x[:, i % 3],
    "x[..., i]": lambda x, i, v: x[..., i % 2],
    "x[None, i, ..., i]": lambda x, i, v: x[None, i, ..., i % 2],
    "x[1:][i]": lambda x, i, v: x[1:][i % 3].sin(),
    "x[argmax]": lambda x, i, v: x[x.sum((1, 2)).argmax()],
    "x[i] twice": lambda x, i, v: x[i] * x[(i + 1) % 4],
    "select": lambda x, i, v: torch.select(x, 0, i) + x.select(-1, i % 2).sum(),
    "narrow": lambda x, i, v: torch.narrow(x, 0, i % 2, 2) + x.narrow(0, (i + 1) % 3, 2),
    "x[i] = v": put,
    "x[1, :, None, i] = v": put_between,
    "x[..., i] = v": put_last,
    "x[i, i] = 5": put_twice,
    "x[i] = x[i].clone() * v": moved,
    "x[i, [0, 2]]": lambda x, i, v: x[i, [0, 2]] * v[:2],
    "x[i, mask]": lambda x, i, v: x[i, torch.tensor([True, False, True])] * v[:2],
    "x[[0, 2], i]": lambda x, i, v: x[[0, 2], i % 3] + x[:2, torch.tensor([0, 0]), i % 2][:, 0],
    "x[..., [1, 0], i]": lambda x, i, v: x[..., [1, 0], i % 2],
    "x[i, :, [1, 0]]": lambda x, i, v: x[i, :, [1, 0]] + x[i, None, :, [1]],
    "x[i, [0, 2]] = v": put_among,
    "x[i, [0, 2]].mul_": picked_and_written,
    "captured": lambda x, i, v: x[PLACES[0]] + X[i],
}
V = torch.linspace(1, 2, 6, dtype=torch.float64).reshape(3, 2)
TRANSFORMS = {
    "none": lambda f: f,
    "grad": lambda f: tl.grad(lambda x, i, v: f(x, i, v).sin().sum(), argnums=(0, 2)),
    "hessian": lambda f: tl.hessian(lambda x, i, v: f(x, i, v).sin().sum()),
    "jvp": lambda f: lambda x, i, v: tl.jvp(lambda x: f(x, i, v), (x,), (x.cos(),)),
    "vmap": lambda f: lambda x, i, v: tl.vmap(lambda v: f(x * v.sum(), i, v))(v.expand(5, 3, 2)),
    "vmap of grad": lambda f: (
        lambda x, i, v: tl.vmap(tl.grad(lambda x: f(x, i, v).sin().sum()))(torch.stack([x, x + 1]))
    ),
}


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled_subscripts_equal_eager(name, transform):
    f = TRANSFORMS[transform](PROGRAMS[name])
    compiled = replayed(f)
    for i in PLACES:
        torch.testing.assert_close(compiled(X, i, V), f(X, i, V))
    assert len(compiled.report().signatures) == 2, "a dtype each"


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("name", PROGRAMS)
def test_inductor_and_plain_autograd(name):
    f = PROGRAMS[name]

    def gradients(f):
        x, v = X.clone().requires_grad_(), V.clone().requires_grad_()
        result = f(x, PLACES[1], v)
        return result, torch.autograd.grad(result.sin().sum(), (x, v), allow_unused=True)

    compiled = tl.compile(f)
    torch.testing.assert_close(gradients(compiled), gradients(f))
    assert [entry.how for entry in compiled.report().signatures] == ["inductor"]


def test_arguments_by_name():
    def f(x, i):
        return (
            torch.select(input=x, dim=1, index=i % 3),
            x.select(dim=0, index=1),
            torch.narrow(input=x, dim=0, start=i % 2, length=2),
            x.narrow(dim=1, start=0, length=1),
        )

    torch.testing.assert_close(replayed(f)(X, PLACES[0]), f(X, PLACES[0]))


def test_values_are_cast_and_broadcast_as_uncompiled():
    def f(x, i, v):
        y = x.clone()
        y[i] = v
        return y

    for x in (X.int(), X.bool(), X.half(), X.to(torch.complex64)):
        for v in (2, 0.0, True, V[:1].unsqueeze(0), V[0].float(), torch.tensor(3)):
            torch.testing.assert_close(replayed(f)(x, PLACES[0], v), f(x, PLACES[0], v))


@pytest.mark.parametrize("i", [4, -5])
@pytest.mark.parametrize("name", ["x[i]", "x[i] = v"])
def test_index_out_of_range_is_an_error_at_the_call(name, i):
    compiled = replayed(PROGRAMS[name])
    compiled(X, PLACES[0], V)
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        compiled(X, torch.tensor(i), V)
    torch.testing.assert_close(compiled(X, PLACES[0], V), PROGRAMS[name](X, PLACES[0], V))


def written(x, i):
    x[i].add_(1)
    return x


def written_through_a_view(x, i):
    x[i][:1].zero_()
    return x


def read_after_its_source(x, i):
    y = x.clone()
    row = y[i]
    y[i] = 0
    return row


def swapped_as_views(x, i):
    y = x.clone()
    one, other = y[i], y[0]
    y[0] = one
    y[i] = other
    return y, one


@pytest.mark.parametrize(
    "f", [written, written_through_a_view, read_after_its_source, swapped_as_views]
)
def test_observable_view_is_rejected(f):
    with pytest.raises(
        tl.errors.TransformError, match=r"copy in the captured graph.* In test_indexing"
    ):
        replayed(f)(X.clone(), PLACES[0])


def in_a_sum(x, i):
    y = x * 2
    row = y[i]
    y[i] = x.sum()
    return (y.sum(0) * row).sum()


def in_a_linear_function(x, i):
    y = x * 2
    row = y[i]
    y.mul_(3)
    return y.sum() + row.sum()


def in_a_write_to_the_copy(x, i):
    y = x * 2
    y[i].add_(x.sum())
    return y.square().sum()


def as_the_result(x, i):
    y = x.square().sum((1, 2))
    entry = y[i]
    y.mul_(3)
    return entry


def along(f):
    return lambda x: tl.jet(f, (x,), ((x,),))[1][0]


# Below these, writes are functionalized, so that the graph has none.
FUNCTIONALIZING = {
    "functionalize": tl.functionalize,
    "jet": along,
    "laplacian": tl.laplacian,
    "grad(functionalize)": lambda f: tl.grad(tl.functionalize(f)),
    "grad(jet)": lambda f: tl.grad(along(f)),
}


@pytest.mark.parametrize("nest", FUNCTIONALIZING)
@pytest.mark.parametrize(
    "f", [in_a_sum, in_a_linear_function, in_a_write_to_the_copy, as_the_result]
)
def test_observable_view_is_rejected_where_writes_are_functionalized(f, nest):
    with pytest.raises(tl.errors.TransformError, match="copy in the captured graph"):
        replayed(lambda x, i: FUNCTIONALIZING[nest](lambda x: f(x, i))(x))(X, PLACES[0])


@pytest.mark.parametrize("nest", FUNCTIONALIZING)
def test_reads_before_a_functionalized_write_may_be_copies(nest):
    def f(x, i):
        y = x * 2
        row, before = y[i].clone(), y[i] * 2
        y[i] = y[i] * x.sum()
        return (y.sum(0) * row * before).sum()

    nested = lambda x, i: FUNCTIONALIZING[nest](lambda x: f(x, i))(x)  # noqa: E731
    torch.testing.assert_close(replayed(nested)(X, PLACES[0]), nested(X, PLACES[0]))


def test_read_before_a_write_may_be_a_copy():
    def f(x, i):
        for k in range(3):
            x[i] = x[i] * 2 + k
        return x.sum()

    x, y = X.clone(), X.clone()
    torch.testing.assert_close(replayed(f)(x, PLACES[0]), f(y, PLACES[0]))
    torch.testing.assert_close(x, y)


def test_clone_keeps_the_value_before_a_write():
    def f(x, i):
        y = x.clone()
        row = y[i].clone()
        y[i] = 0
        i.add_(1)
        return row, y

    torch.testing.assert_close(replayed(f)(X, torch.tensor(1)), f(X, torch.tensor(1)))


def test_other_reads_of_an_index_split_the_graph():
    for f, i in (
        (lambda x, i: x[i], torch.tensor(True)),
        (lambda x, i: [1, 2, 3][i] * x, PLACES[0]),
    ):
        with pytest.raises(tl.errors.DataDependentError):
            replayed(f, fullgraph=True)(X, i)
        torch.testing.assert_close(replayed(f)(X, i), f(X, i))

    def with_a_boolean(x, i):
        return x[i, True]

    with pytest.raises(IndexError, match="index_select"):
        tl.make_graph(with_a_boolean)(X, PLACES[0])
    with pytest.warns(UserWarning, match=r"can't be captured: IndexError: .*index_select"):
        result = replayed(with_a_boolean)(X, PLACES[0])
    torch.testing.assert_close(result, with_a_boolean(X, PLACES[0]))


def test_subscripts_with_symbolic_sizes():
    def f(x, i):
        return x[i], put(x, i, 1.0)

    compiled = replayed(f, dynamic=True)
    for size in (4, 5, 6, 7):
        x = torch.rand(size, 3)
        torch.testing.assert_close(compiled(x, PLACES[1]), f(x, PLACES[1]))
    assert len(compiled.report().signatures) == 2
