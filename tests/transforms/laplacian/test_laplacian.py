"""laplacian and hessian_diagonal: models, options, nests, random directions and errors."""

import itertools

import pytest
import torch
from torch import nn

import torchlayers as tl
from tests.transforms.laplacian.models import mlp, models
from tests.transforms.laplacian.reference import trace_of_hessian
from torchlayers.errors import (
    ArgnumsError,
    DtypeError,
    NotTensorError,
    OutputError,
    StructureError,
    TransformError,
)
from torchlayers.transforms.laplacian import seeds

close = torch.testing.assert_close
MODELS = models()
NAMES = pytest.mark.parametrize("name", MODELS)


def smooth(x):
    """Its Hessian is full, and so is its fourth derivative."""
    return torch.exp(x.sin().sum() / 2) + (x**3).prod()


X = torch.tensor([0.5, -0.3, 0.8], dtype=torch.float64)


@NAMES
def test_a_model_has_the_trace_of_its_hessian(name):
    f, x = MODELS[name]
    found = tl.laplacian(f, with_value=True)(x)
    close(found.laplacian, trace_of_hessian(f)(x))
    close(found.jacobian, tl.jacrev(f)(x))
    close(found.value, f(x))


@NAMES
def test_samples_of_a_batch_do_not_mix(name):
    f, x = MODELS[name]
    batch = torch.stack([x, x * 0.7, x + 0.1])
    expected = torch.stack([tl.laplacian(f)(each) for each in batch])
    close(tl.vmap(tl.laplacian(f))(batch), expected)


WIDE = torch.randn(128, 128, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 12
BIAS = WIDE[0]
PRODUCTS = {
    "linear": lambda x: nn.functional.linear(x, WIDE, BIAS),
    "linear without a bias": lambda x: nn.functional.linear(x, WIDE),
    "mm": lambda x: (x[None] @ WIDE + BIAS)[0],
    "mv": lambda x: WIDE @ x,
    "mm from the left": lambda x: (WIDE @ x[:, None])[:, 0],
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_with_large_matrices(name):
    """Of few samples, the value, the rows and the Laplacian are multiplied at once."""

    def f(x):
        y = PRODUCTS[name](torch.cat([x, x.sin().sum().expand(125)]).sin())
        return PRODUCTS[name](y.tanh()).exp().sum()

    found = tl.laplacian(f, with_value=True)(X)
    close(found.laplacian, trace_of_hessian(f)(X))
    close(found.jacobian, tl.grad(f)(X))
    close(found.value, f(X))
    batch = torch.stack([X * (0.5 + i / 40) for i in range(40)])
    for samples in (batch[:2], batch):
        expected = tl.vmap(trace_of_hessian(f))(samples)
        close(tl.vmap(tl.laplacian(f))(samples), expected)
    slope = tl.grad(lambda x: tl.laplacian(f)(x))(X)
    close(slope, tl.grad(lambda x: trace_of_hessian(f)(x))(X))


@NAMES
def test_a_hessian_diagonal_is_that_of_the_hessian(name):
    f, x = MODELS[name]
    found = tl.hessian_diagonal(f)(x)
    hessian = tl.hessian(f)(x)
    flat = hessian.reshape(*f(x).shape, x.numel(), x.numel())
    close(found, flat.diagonal(dim1=-2, dim2=-1).reshape(found.shape))


def test_several_arguments_are_summed_over():
    def f(x, y, scale):
        return {"a": scale * (x.sin() @ y["w"]), "b": (x * 2).exp()}

    y = {"w": torch.rand(3, 2, dtype=torch.float64)}
    found = tl.laplacian(f, (0, 1), with_value=True)(X, y, 3.0)
    by_x, by_y = (tl.laplacian(f, place)(X, y, 3.0) for place in (0, 1))
    close(found.laplacian, {key: by_x[key] + by_y[key] for key in "ab"})
    close(found.jacobian["a"], tl.jacrev(f, (0, 1))(X, y, 3.0)["a"])


def test_arguments_of_one_shape_are_different_inputs():
    found = tl.laplacian(lambda x, y: (x + y).exp().sum(), (0, 1))(X, X)
    close(found, 2 * (2 * X).exp().sum())


def test_names_choose_entries_of_a_dict():
    params = {"a": X, "b": X + 1}
    found = tl.laplacian(lambda p: smooth(p["a"] * p["b"]), tl.names("a"))(params)
    close(found, tl.laplacian(lambda a: smooth(a * (X + 1)))(X))


def test_aux_and_keyword_arguments_are_passed_through():
    def f(x, *, factor):
        return smooth(factor * x), {"twice": 2 * x, "name": "f"}

    found, aux = tl.laplacian(f, has_aux=True)(X, factor=2.0)
    close(found, trace_of_hessian(lambda x: smooth(2 * x))(X))
    close(aux["twice"], 2 * X)
    assert aux["name"] == "f"
    diagonal, aux = tl.hessian_diagonal(lambda x: f(x, factor=2.0), has_aux=True)(X)
    close(diagonal.sum(), found)
    close(aux["twice"], 2 * X)


def test_a_function_that_does_not_depend_on_its_argument_has_zeros():
    constant = torch.ones(2, dtype=torch.float64)
    found = tl.laplacian(lambda x: (constant, x.detach(), x + 1), with_value=True)(X)
    close(found.laplacian, (torch.zeros_like(constant), torch.zeros_like(X), torch.zeros_like(X)))
    close(found.jacobian[0], constant.new_zeros(2, 3))
    close(found.jacobian[1], X.new_zeros(3, 3))


def test_complex_values_inside():
    def f(x):
        phase = torch.polar(torch.ones_like(x), x) * torch.complex(x, x.exp())
        return torch.view_as_real(phase.prod())

    close(tl.laplacian(f)(X), trace_of_hessian(f)(X))


def test_derivatives_have_the_dtype_of_the_value():
    """Where a sum of two dtypes promotes."""
    matrix = torch.ones(2, 3, dtype=torch.complex128)

    def f(x):
        return torch.view_as_real(matrix @ ((x.float() ** 2 + X) + 1j).sin()).square()

    narrow = X.float()
    found = tl.laplacian(f, with_value=True)(narrow)
    close(found.laplacian, tl.laplacian(f)(X), rtol=1e-4, atol=1e-4)
    assert {each.dtype for each in found} == {torch.float64}


WEIGHTS = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_weights_and_directions():
    f = MODELS["several outputs"][0]
    x = X.abs()
    close(tl.laplacian(f, weights=WEIGHTS)(x), trace_of_hessian(f, WEIGHTS)(x))
    close(tl.laplacian(f, weights=WEIGHTS[0])(x), trace_of_hessian(f, WEIGHTS[0].diag())(x))
    sigma = WEIGHTS[:, :2]
    close(tl.laplacian(f, directions=sigma.T)(x), trace_of_hessian(f, sigma @ sigma.T)(x))
    both = tl.laplacian(f, directions=sigma.T, weights=torch.tensor([2.0, -1.0]).double())(x)
    signed = sigma @ torch.tensor([[2.0, 0.0], [0.0, -1.0]]).double() @ sigma.T
    close(both, trace_of_hessian(f, signed)(x))
    along = tl.laplacian(f, directions=sigma.T, with_value=True)(x).jacobian
    close(along, (tl.jacrev(f)(x) @ sigma).T)


@pytest.mark.parametrize("name", ["MLP, Tanh()", "attention", "determinant", "convolutions"])
def test_weights_reach_every_rule(name):
    f, x = MODELS[name]
    count = x.numel()
    weights = torch.randn(count, count, dtype=torch.float64, generator=torch.Generator())
    expected = trace_of_hessian(f, (weights + weights.T) / 2)(x)
    close(tl.laplacian(f, weights=weights)(x), expected)
    diagonal = weights[0].reshape(x.shape)
    close(tl.laplacian(f, weights=diagonal)(x), trace_of_hessian(f, weights[0].diag())(x))


@pytest.mark.parametrize("weights", [None, WEIGHTS[0], WEIGHTS], ids=["none", "vector", "matrix"])
def test_random_directions_are_unbiased(weights, monkeypatch):
    """The mean over all vectors of signs, each as likely as any other, is exact."""
    signs = torch.tensor([*itertools.product([1.0, -1.0], repeat=3)], dtype=torch.float64)
    monkeypatch.setattr(seeds.Randomness, "draw", lambda self, like: [signs])
    matrix = weights.diag() if weights is not None and weights.dim() == 1 else weights
    found = tl.laplacian(smooth, weights=weights, samples=len(signs))(X)
    close(found, trace_of_hessian(smooth, matrix)(X))


@pytest.mark.parametrize("distribution", ["rademacher", "normal"])
def test_drawn_directions_have_the_identity_as_covariance(distribution):
    count = 20_000
    for options in (
        {"key": tl.random.key(0), "generator": None},
        {"key": None, "generator": torch.Generator().manual_seed(0)},
    ):
        drawn = seeds.Randomness(count, distribution, **options).draw([X, X[:1]])
        together = torch.cat(drawn, 1)
        # Five standard errors of the mean of a product of two entries.
        bound = 5 * (2 / count) ** 0.5
        assert (together.T @ together / count - torch.eye(4)).abs().max() < bound
        assert together.dtype == torch.float64
        if distribution == "rademacher":
            assert set(together.unique().tolist()) == {-1.0, 1.0}


def test_random_directions_are_reproducible():
    key = tl.random.key(3)
    by_key = [tl.laplacian(smooth, samples=1, key=key)(X) for _ in range(2)]
    assert by_key[0] == by_key[1]
    found = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(5)
        found.append(tl.laplacian(smooth, samples=1, generator=generator)(X))
    assert found[0] == found[1]
    value, jacobian, _ = tl.laplacian(smooth, samples=1, key=key, with_value=True)(X)
    close(value, smooth(X))
    assert jacobian is None


def test_nested_laplacians_are_biharmonic():
    expected = trace_of_hessian(trace_of_hessian(smooth))(X)
    close(tl.laplacian(tl.laplacian(smooth))(X), expected)


def test_laplacian_of_a_gradient():
    f = MODELS["MLP, Tanh()"][0]

    def g(x):
        return tl.grad(lambda x: f(x).squeeze())(x)

    x = MODELS["MLP, Tanh()"][1]
    close(tl.laplacian(g)(x), trace_of_hessian(g)(x))


NET = mlp(nn.Tanh(), 3).double()
PARAMS = {name: value.detach() for name, value in NET.named_parameters()}
POINTS = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def poisson_loss(operator):
    """The mean squared residual of a PINN for Poisson's equation."""

    def loss(params):
        def u(x):
            return tl.functional_call(NET, params, (x,)).squeeze()

        return (tl.vmap(operator(u))(POINTS) - 1).square().mean()

    return loss


def test_a_physics_informed_loss_has_its_gradient():
    close(
        tl.grad(poisson_loss(tl.laplacian))(PARAMS), tl.grad(poisson_loss(trace_of_hessian))(PARAMS)
    )


def test_jvp_of_a_laplacian():
    tangent = torch.ones_like(X)
    expected = tl.jvp(trace_of_hessian(smooth), (X,), (tangent,))
    close(tl.jvp(tl.laplacian(smooth), (X,), (tangent,)), expected)


def test_plain_autograd_differentiates_a_laplacian():
    x = X.clone().requires_grad_()
    (found,) = torch.autograd.grad(tl.laplacian(smooth)(x), x)
    close(found, tl.grad(trace_of_hessian(smooth))(X))


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:`torch._prims_common.check`")  # from inductor's trace
def test_a_compiled_training_step():
    found = tl.compile(tl.grad(poisson_loss(tl.laplacian)))(PARAMS)
    close(found, tl.grad(poisson_loss(trace_of_hessian))(PARAMS))


def test_under_torch_compile_it_runs_as_it_is():
    batch = torch.stack([X, X + 0.1])
    compiled = torch.compile(tl.vmap(tl.laplacian(smooth)), backend="eager")
    close(compiled(batch), tl.vmap(tl.laplacian(smooth))(batch))


def test_inside_and_around_vmap_and_control_flow():
    batch = torch.stack([X, X + 0.1])
    expected = torch.stack([trace_of_hessian(smooth)(x) for x in batch])
    close(tl.laplacian(tl.vmap(smooth))(batch), expected)
    close(torch.func.vmap(tl.laplacian(smooth))(batch), expected)

    def product(x):
        one = torch.ones((), dtype=x.dtype)
        return tl.scan(lambda carry, each: (carry * each.sin(), carry), one, x)[0]

    close(tl.laplacian(product)(X), -3 * X.sin().prod())


def test_the_stack_is_restored_after_an_error():
    def broken(x):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tl.laplacian(broken)(X)
    assert tl.current_stack() == ()
    close(tl.laplacian(smooth)(X), trace_of_hessian(smooth)(X))


def test_an_empty_argument():
    empty = torch.zeros(0, dtype=torch.float64)
    close(tl.laplacian(lambda x: x.exp().sum())(empty), torch.tensor(0.0).double())


ERRORS = {
    "not a tensor": (lambda: tl.laplacian(smooth)(1.0), NotTensorError, "argument 0 must be a"),
    "integers": (lambda: tl.laplacian(smooth)(torch.arange(3)), DtypeError, "got torch.int64"),
    "complex": (
        lambda: tl.laplacian(smooth)(torch.ones(2, dtype=torch.complex64)),
        DtypeError,
        "real and imaginary part as two",
    ),
    "argnums": (lambda: tl.laplacian(smooth, 1)(X), ArgnumsError, "names argument 1"),
    "no tensors": (lambda: tl.laplacian(smooth)(()), StructureError, "hold no tensor"),
    "output": (lambda: tl.laplacian(lambda x: 1.0)(X), OutputError, "laplacian: the function must"),
    "aux": (
        lambda: tl.laplacian(smooth, has_aux=True)(X),
        OutputError,
        r"laplacian: the function's result should be a tuple: \(output, aux\)",
    ),
    "samples": (
        lambda: tl.laplacian(smooth, samples=0),
        TransformError,
        "samples must be a positive int, got 0",
    ),
    "distribution": (
        lambda: tl.laplacian(smooth, samples=1, distribution="uniform"),
        TransformError,
        "distribution must be 'rademacher' or 'normal', got 'uniform'",
    ),
    "a key alone": (
        lambda: tl.laplacian(smooth, key=tl.random.key(0)),
        TransformError,
        "pass samples",
    ),
    "a key and a generator": (
        lambda: tl.laplacian(smooth, samples=1, key=tl.random.key(0), generator=torch.Generator()),
        TransformError,
        "not both",
    ),
    "directions and samples": (
        lambda: tl.laplacian(smooth, samples=1, directions=X[None]),
        TransformError,
        "exclude each other",
    ),
    "the shape of directions": (
        lambda: tl.laplacian(smooth, directions=X)(X),
        StructureError,
        r"directions of shape \(3,\) do not fit an argument of shape \(3,\)",
    ),
    "the dtype of directions": (
        lambda: tl.laplacian(smooth, directions=torch.eye(3))(X),
        DtypeError,
        "directions have dtype torch.float32",
    ),
    "the structure of directions": (
        lambda: tl.laplacian(smooth, directions={"a": X})(X),
        StructureError,
        "directions must have the structure",
    ),
    "weights": (
        lambda: tl.laplacian(smooth, weights=torch.ones(2, 3))(X),
        StructureError,
        r"a matrix of shape \(3, 3\) or a vector of shape \(3,\)",
    ),
    "the diagonal of an int": (
        lambda: tl.hessian_diagonal(smooth)(torch.arange(3)),
        DtypeError,
        "hessian_diagonal: argument 0",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_say_what_is_wrong(name):
    run, kind, text = ERRORS[name]
    with pytest.raises(kind, match=text) as caught:
        run()
    assert str(caught.value).startswith("torchlayers: ")
    assert tl.current_stack() == ()


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.view_as_real(torch.complex(x, -x.sin())).prod(),
        lambda x: torch.complex(x, x * x).conj().imag * x.cos(),
        lambda x: torch.complex(x.sin(), x).imag.neg().exp(),
    ],
)
def test_of_real_parts_of_complex_numbers(f):
    """A diagonal Jacobian of complex numbers does not pass through view_as_real as a factor."""
    x = torch.tensor(0.3, dtype=torch.float64)
    torch.testing.assert_close(tl.laplacian(f)(x), tl.hessian(f)(x))


def test_gradient_of_a_mean_of_no_elements():
    empty = torch.zeros(0, dtype=torch.float64)
    result = tl.laplacian(lambda x: tl.grad(lambda x: x.mean())(x).sum())(empty)
    assert result.shape == ()
    assert result == 0


def test_of_no_inputs_it_is_a_sum_of_nothing():
    nothing = torch.ones(0, dtype=torch.float64)
    mean = torch.mean  # of nothing: nan, and so are its derivatives along tangents
    for f in (mean, lambda x: tl.jvp(mean, (x,), (x,))[1]):
        assert tl.laplacian(f)(nothing) == 0


@pytest.mark.parametrize("outer", [tl.laplacian, tl.hessian_diagonal])
def test_twice_of_the_solution_of_a_linear_system(outer):
    def solution(x):
        return torch.linalg.solve(torch.outer(x, x) + 2 * torch.eye(3, dtype=x.dtype), x)

    found = outer(lambda x: tl.laplacian(solution)(x).sum())(X)
    once = tl.hessian(lambda x: trace_of_hessian(solution)(x).sum())(X)
    close(found, once.trace() if outer is tl.laplacian else once.diagonal())


ZEROS = torch.zeros(3, dtype=torch.complex128)
MASK = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
OF_ZEROS = {
    "abs": lambda x: torch.cat([torch.fft.rfft(x), ZEROS]).abs().square().sum(),
    "abs, masked": lambda x: (torch.complex(x, x) * MASK).abs().pow(3).sum(),
    "sgn": lambda x: (torch.complex(x, x.sin()) * MASK).sgn().real.sum(),
    "angle": lambda x: (torch.complex(x, x.sin()) * MASK).angle().sum(),
    "norm": lambda x: torch.stack([x, x * 0]).norm(dim=1).square().sum(),
    "norm of pairs": lambda x: (torch.stack([x, x.sin()]) * MASK).norm(dim=0).square().sum(),
    "norm of order 3": lambda x: torch.stack([x, x * 0]).norm(p=3, dim=1, keepdim=True).sum(),
    "norm, complex": lambda x: (torch.complex(x, x.sin())[None] * MASK).norm(dim=0).sum(),
}


@pytest.mark.parametrize("name", OF_ZEROS)
def test_zeros_that_do_not_change_are_constants(name):
    """Though neither abs of complex numbers nor a norm has a second derivative at zero."""
    f = OF_ZEROS[name]

    def at(x, w):
        return tl.laplacian(lambda x: f(w * x))(x)

    def differences(f, x, step):
        return [(f(x + step * e) - f(x - step * e)) / (2 * step) for e in torch.eye(3).double()]

    slopes = [lambda x, i=i: differences(f, x, 1e-4)[i] for i in range(3)]
    expected = sum(differences(slope, X, 1e-4)[i] for i, slope in enumerate(slopes))
    torch.testing.assert_close(tl.laplacian(f)(X), expected, rtol=1e-5, atol=1e-5)
    gradient = tl.grad(at, argnums=1)(X, torch.ones_like(X))
    slope = torch.stack(differences(lambda w: at(X, w), torch.ones_like(X), 1e-5))
    torch.testing.assert_close(gradient, slope, rtol=1e-6, atol=1e-6)


def test_zeros_that_change_have_no_second_derivative():
    x = torch.zeros(3, dtype=torch.float64)
    assert tl.laplacian(lambda x: torch.complex(x, x).abs().sum())(x).isnan()
    assert tl.laplacian(torch.linalg.vector_norm)(x).isnan()
