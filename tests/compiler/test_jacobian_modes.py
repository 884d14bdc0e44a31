"""jacobian and costs: the mode with the least counted costs, and the same results in each."""

import pytest
import torch
from torch import nn

import torchlayers as tl
from torchlayers.compiler.jacobian import differentiated


def tall(x):
    return torch.outer(x, x).sin().flatten()


def wide(x):
    return x[:2].sin() * x.square().sum()


def square(x):
    return (x.sum() * x).tanh()


def banded(x):
    return x[2:] * x[:-2] - x[1:-1].exp()


def arrow(x):
    return torch.cat([x.square().sum()[None], x[0] * x[1:].sin()])


def blocks(x):
    return (x.view(-1, 4, 1) * x.view(-1, 1, 4)).sum(2).sin().flatten()


def mlp(inputs, outputs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs)).double()


def numbers(*shape):
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


# The function, the number of inputs, and the mode.
FUNCTIONS = {
    "tall": (tall, 60, "forward"),
    "wide": (wide, 4000, "reverse"),
    "square": (square, 12, None),
    "banded": (banded, 1000, "sparse"),
    "arrow": (arrow, 1500, "sparse"),
    "blocks": (blocks, 1600, "sparse"),
    "network with few inputs": (mlp(3, 4000), 3, "forward"),
    "network with few outputs": (mlp(5000, 2), 5000, "reverse"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_mode_is_that_of_the_structure(name):
    f, size, mode = FUNCTIONS[name]
    x = numbers(size)
    jacobian = tl.jacobian(f)
    torch.testing.assert_close(jacobian(x), tl.jacrev(f)(x))
    (chosen,) = jacobian.report().signatures
    assert mode is None or chosen.mode == mode
    assert f": {chosen.mode}, " in repr(jacobian.report())


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse", "sparse"])
@pytest.mark.parametrize("argnums", [0, -1, (0, 1), (1,)])
def test_every_mode_returns_what_jacrev_returns(mode, argnums):
    def f(x, tree):
        return {"a": x * tree["w"].sum(), "b": (x.sum().sin(), tree["v"][:, None] * x[:2])}

    args = numbers(3), {"w": numbers(2, 2), "v": numbers(4)}
    actual = tl.jacobian(f, argnums, mode=mode)(*args)
    torch.testing.assert_close(actual, tl.jacrev(f, argnums)(*args))


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse", "sparse"])
def test_aux_is_passed_through(mode):
    jacobian, aux = tl.jacobian(lambda x: (banded(x), ["aux", x]), has_aux=True, mode=mode)(
        numbers(40)
    )
    torch.testing.assert_close(jacobian, tl.jacrev(banded)(numbers(40)))
    assert aux[0] == "aux" and torch.equal(aux[1], numbers(40))


def test_entries_are_chosen_by_names():
    def f(params, x):
        return params["scale"] * x + params["shift"]

    params = {"scale": numbers(5), "shift": numbers(5)}
    by_name = tl.jacobian(f, tl.names("scale"))
    torch.testing.assert_close(
        by_name(params, numbers(5)), tl.jacrev(f, tl.names("scale"))(params, numbers(5))
    )
    assert "names" in repr(by_name.report())


def test_a_decision_is_kept_for_its_shapes(monkeypatch):
    from torchlayers.compiler.jacobian import decision

    counted = []
    decide = decision.decide
    monkeypatch.setattr(decision, "decide", lambda *args: counted.append(1) or decide(*args))

    def f(x, exponent):
        return x.sin() ** exponent

    def jacobian():
        return tl.jacobian(lambda x, exponent: f(x, exponent))

    first = jacobian()
    for exponent in (2.0, 3.0):
        first(numbers(4), exponent)
        jacobian()(numbers(4), exponent)  # made anew at each call, as in a loss
    assert len(counted) == 1
    first(numbers(5), 2.0)
    assert len(counted) == len(first.report().signatures) == 2


def test_a_pattern_is_not_kept_when_a_captured_tensor_has_changed():
    mask = torch.zeros(1000, 1000, dtype=torch.float64)
    mask.diagonal().fill_(2)

    def f(x):
        return mask @ x.sin()

    x, jacobian = numbers(1000), tl.jacobian(f)
    jacobian(x)
    assert [costs.mode for costs in jacobian.report().signatures] == ["sparse"]
    for i in range(1, 5):
        mask[0, i] = i
        torch.testing.assert_close(jacobian(x), mask * x.cos())
    assert "changes between calls" in jacobian.report().signatures[0].why


def test_a_pattern_is_not_kept_when_python_state_has_changed():
    class Model:
        shifts = (1,)

        def __call__(self, x):
            return sum(x.sin().roll(shift) for shift in self.shifts)

    model, x = Model(), numbers(1000)
    jacobian = tl.jacobian(lambda x: model(x))
    jacobian(x)
    assert jacobian.report().signatures[0].mode == "sparse"
    model.shifts = (1, 5)
    torch.testing.assert_close(jacobian(x), tl.jacrev(model)(x))


def test_a_pattern_is_not_kept_for_other_constants():
    jacobian = tl.jacobian(lambda x, index: x.sin()[index])
    for index in (torch.arange(1000), torch.arange(1000).flip(0)):
        expected = tl.jacrev(lambda x, index: x.sin()[index])(numbers(1000), index)
        torch.testing.assert_close(jacobian(numbers(1000), index), expected)


def test_products_run_in_chunks_within_the_budget():
    x = numbers(200)
    jacobian = tl.jacobian(square, memory_budget=400_000)
    torch.testing.assert_close(jacobian(x), tl.jacrev(square)(x))
    (costs,) = jacobian.report().signatures
    assert costs.chunk_size is not None and 1 < costs.chunk_size < 200
    assert f"{costs.chunk_size} products at a time" in costs.why


NESTS = {
    "vmap": lambda jacobian: tl.vmap(jacobian),
    "grad": lambda jacobian: tl.grad(lambda x: jacobian(x).square().sum()),
    "jvp": lambda jacobian: lambda x: tl.jvp(jacobian, (x,), (x,))[1],
    "jacobian": lambda jacobian: tl.jacobian(jacobian),
    "vmap of grad": lambda jacobian: tl.vmap(tl.grad(lambda x: jacobian(x).square().sum())),
    "compile": lambda jacobian: tl.compile(jacobian, backend="replay"),
    "torch.compile": lambda jacobian: torch.compile(jacobian, backend="eager", fullgraph=True),
}


@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("f", [square, banded])
def test_inside_other_transforms(f, nest):
    x = numbers(3, 12) if "vmap" in nest else numbers(12)
    actual = NESTS[nest](lambda x: tl.jacobian(f)(x))(x)
    torch.testing.assert_close(actual, NESTS[nest](lambda x: tl.jacrev(f)(x))(x))


def test_what_a_layer_outside_batches_may_be_captured():
    weights, x = numbers(3, 5), numbers(5)

    def of_jacobian(transform):
        return tl.vmap(lambda w: transform(lambda x: (w * x).sin())(x))(weights)

    torch.testing.assert_close(of_jacobian(tl.jacobian), of_jacobian(tl.jacrev))


def test_a_sparse_decision_applies_inside_vmap():
    xs, jacobian = numbers(2, 1000), tl.jacobian(banded)
    torch.testing.assert_close(tl.vmap(jacobian)(xs), tl.vmap(tl.jacfwd(banded))(xs))
    assert jacobian.report().signatures[0].mode == "sparse"


def test_a_function_that_reads_values_is_decided_by_its_sizes():
    def f(x):
        return x * x if x.sum() > 0 else -x

    jacobian = tl.jacobian(lambda x: f(x)[:2])
    torch.testing.assert_close(jacobian(numbers(5)), tl.jacrev(f)(numbers(5))[:2])
    (costs,) = jacobian.report().signatures
    assert costs.mode == "reverse" and costs.why.startswith("by its sizes alone")


def test_a_function_that_has_one_derivative_gets_it():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return 2 * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    jacobian = tl.jacobian(lambda x: Double.apply(x).repeat(5))
    assert torch.equal(jacobian(torch.ones(2)), 2 * torch.eye(2).repeat(5, 1))
    assert jacobian.report().signatures[0].mode == "reverse"


def test_costs_need_no_values():
    x = tl.ShapeDtypeStruct((100_000,))
    costs = tl.costs(lambda x: x.square().sum(), x)
    forward, reverse, sparse = costs.modes
    assert costs.mode == "reverse" and costs.shape == (1, 100_000)
    assert (forward.products, reverse.products) == (100_000, 1)
    assert forward.flops > 1000 * reverse.flops and forward.seconds > reverse.seconds
    assert "values" in sparse.refusal
    assert "sparse: a pattern depends on values" in repr(costs)


def test_costs_are_those_that_jacobian_decides_by():
    x, jacobian = numbers(1000), tl.jacobian(banded)
    jacobian(x)
    assert tl.costs(banded, x) == jacobian.report().signatures[0]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: tl.jacobian(square, mode="backward"), ValueError, "mode must be 'auto', "),
        (lambda: tl.jacobian(square, memory_budget=0), ValueError, "greater than 0, got 0"),
        (lambda: tl.costs(square, numbers(2), memory_budget=-1), ValueError, "greater than 0"),
        (lambda: tl.jacobian(numbers(2)), tl.errors.CallError, "func must be a function"),
        (lambda: tl.costs(numbers(2)), tl.errors.CallError, "f must be a function"),
        (lambda: tl.jacobian(square, 1)(numbers(2)), tl.errors.ArgnumsError, "jacobian: "),
        (
            lambda: tl.costs(square, {"a": numbers(2)}, argnums=tl.names("a")),
            tl.errors.ArgnumsError,
            "without names",
        ),
        (lambda: tl.jacobian(square)(2.0), tl.errors.NotTensorError, "jacobian: argument 0"),
        (lambda: tl.jacobian(square)(1j * numbers(2)), tl.errors.DtypeError, "jacobian: Expected"),
        (lambda: tl.jacobian(lambda x: "x")(numbers(2)), tl.errors.OutputError, "jacobian: "),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_a_pattern_that_fails_without_a_message_is_no_pattern(monkeypatch):
    def failing(*_, **__):
        raise AssertionError

    monkeypatch.setattr(differentiated, "detect_jacobian", failing)
    costs = tl.costs(torch.sin, torch.ones(20))
    assert costs.modes[-1].refusal == "no pattern: AssertionError"
