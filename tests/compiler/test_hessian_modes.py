"""hessian with a mode: the one with the least counted costs, and the same results in each."""

import pytest
import torch

import torchlayers as tl


def numbers(*shape):
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def rosenbrock(x):
    return (100 * (x[1:] - x[:-1].square()).square() + (1 - x[:-1]).square()).sum()


def product(x):
    return x.sin().sum() * x.square().sum()


def by_differences(f, x, step=1e-5):
    """The Hessian by central differences of the gradient."""
    gradient = tl.grad(f)
    columns = [
        (gradient(x + step * axis) - gradient(x - step * axis)) / (2 * step)
        for axis in torch.eye(len(x), dtype=x.dtype)
    ]
    return torch.stack(columns, 1)


MODES = ["auto", "forward", "reverse", "sparse"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("f", [rosenbrock, product])
def test_every_mode_returns_the_second_derivatives(f, mode):
    x = numbers(12)
    actual = tl.hessian(f, mode=mode)(x)
    torch.testing.assert_close(actual, tl.hessian(f)(x))
    torch.testing.assert_close(actual, by_differences(f, x), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("argnums", [0, -1, (0, 1), (1,)])
def test_every_mode_has_the_structure_of_the_arguments(mode, argnums):
    def f(x, tree):
        return (x.sin() * tree["w"].sum()).sum() * tree["v"].prod()

    args = numbers(3), {"w": numbers(2, 2), "v": numbers(4)}
    actual = tl.hessian(f, argnums, mode=mode)(*args)
    torch.testing.assert_close(actual, tl.hessian(f, argnums)(*args))


@pytest.mark.parametrize(("f", "mode"), [(rosenbrock, "sparse"), (product, None)])
def test_the_mode_is_that_of_the_structure(f, mode):
    x, hessian = numbers(400), tl.hessian(f, mode="auto")
    torch.testing.assert_close(hessian(x), tl.hessian(f)(x))
    (chosen,) = hessian.report().signatures
    assert chosen.shape == (400, 400)
    assert chosen.mode == mode or (mode is None and chosen.mode != "sparse")
    assert repr(hessian.report()).startswith(f"hessian of {f.__name__}: 1 signature\n")
    assert repr(tl.hessian(f, mode="reverse").report()).endswith("mode='reverse', as passed")


def test_an_output_of_several_elements_has_no_sparse_mode():
    def f(x):
        return torch.stack([x.square().sum(), (x[1:] * x[:-1]).sum()])

    x, hessian = numbers(20), tl.hessian(f, mode="auto")
    torch.testing.assert_close(hessian(x), tl.hessian(f)(x))
    (costs,) = hessian.report().signatures
    assert costs.shape == (40, 20)
    assert [mode.products for mode in costs.modes[:2]] == [20, 40]
    assert costs.modes[2].refusal == "the output has 2 elements"


def test_a_pattern_is_not_kept_when_a_captured_tensor_has_changed():
    weights = torch.ones(999, dtype=torch.float64)
    coupling = torch.zeros(1, dtype=torch.float64)

    def f(x):
        return (weights * x[1:] * x[:-1]).square().sum() + (coupling * x[0] * x[-1]).sum()

    x, hessian = numbers(1000), tl.hessian(f, mode="auto")
    for _ in range(4):
        torch.testing.assert_close(hessian(x), tl.hessian(f)(x))
        coupling += 1


def test_a_function_with_a_backward_alone_gets_it_twice():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            return 3 * ctx.saved_tensors[0] ** 2 * g

    hessian = tl.hessian(lambda x: Cube.apply(x).sum(), mode="auto")
    torch.testing.assert_close(hessian(numbers(3)), torch.diag(6 * numbers(3)))


def test_entries_are_chosen_by_names():
    def f(params, x):
        return ((params["scale"] * x).sin() + params["shift"]).square().sum()

    args = {"scale": numbers(5), "shift": numbers(5)}, numbers(5)
    hessian = tl.hessian(f, tl.names("scale"), mode="auto")
    torch.testing.assert_close(hessian(*args), tl.hessian(f, tl.names("scale"))(*args))
    assert "names" in repr(hessian.report())


NESTS = {
    "vmap": tl.vmap,
    "grad": lambda hessian: tl.grad(lambda x: hessian(x).square().sum()),
    "jvp": lambda hessian: lambda x: tl.jvp(hessian, (x,), (x,))[1],
    "compile": lambda hessian: tl.compile(hessian, backend="replay"),
    "torch.compile": lambda hessian: torch.compile(hessian, backend="eager", fullgraph=True),
}


@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("f", [rosenbrock, product])
def test_inside_other_transforms(f, nest):
    x = numbers(3, 12) if nest == "vmap" else numbers(12)
    actual = NESTS[nest](lambda x: tl.hessian(f, mode="auto")(x))(x)
    torch.testing.assert_close(actual, NESTS[nest](lambda x: tl.hessian(f)(x))(x))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: tl.hessian(product, mode="full"), ValueError, "hessian: mode must be 'auto', "),
        (lambda: tl.hessian(product, mode="auto", memory_budget=0), ValueError, "got 0"),
        (lambda: tl.hessian(product, mode="auto", sparse=True), ValueError, "sparse=True and mode"),
        (lambda: tl.hessian(product, mode="auto", size=2), TypeError, "size"),
        (lambda: tl.hessian(numbers(2), mode="auto"), tl.errors.CallError, "must be a function"),
        (
            lambda: tl.hessian(product, mode="auto")(2.0),
            tl.errors.NotTensorError,
            "hessian: argument 0",
        ),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()
