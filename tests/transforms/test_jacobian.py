"""jacrev, jacfwd and hessian: same results as torch.func's."""

import itertools

import pytest
import torch
import torch.func
from torch import nn
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.support.calls import agree, level_of, structures

X = torch.tensor([0.5, 1.0, 2.0])
Y = torch.tensor([[1.0, -1.0, 0.3], [0.2, 0.4, 0.6]])

JACOBIANS = ["jacrev", "jacfwd"]
ALL = [*JACOBIANS, "hessian"]
jacobians = pytest.mark.parametrize("api", JACOBIANS)
all_apis = pytest.mark.parametrize("api", ALL)


def f(x, y):
    return (x * y.sin()).sum(0) * x


def tree(x, y):
    return {"a": x * y, "b": [x.sum(), y.sum(0)]}


def close(ours, theirs):
    """Like assert_same, but ignores strides and rounding: chunks are computed differently."""
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("function", [f, tree])
@pytest.mark.parametrize("argnums", [0, 1, (0,), (1,), (0, 1), (1, 0)])
@all_apis
def test_argnums_choose_the_arguments(api, argnums, function):
    agree(lambda tf: getattr(tf, api)(function, argnums)(X, Y))


# torch.func's jacfwd gives zeros for negative argnums, and so does its hessian.
@pytest.mark.parametrize("function", [f, tree])
@pytest.mark.parametrize("argnums", [-1, -2, (-1,), (0, -1), (-1, 0), (-2, -1)])
@all_apis
def test_argnums_may_count_from_the_end(api, argnums, function):
    from_the_start = pytree.tree_map(lambda place: place % 2, argnums)
    transform = getattr(tl, api)
    close(transform(function, argnums)(X, Y), transform(function, from_the_start)(X, Y))
    if api == "jacrev":
        agree(lambda tf: tf.jacrev(function, argnums)(X, Y))


def test_argnums_of_none_are_all_arguments_of_jacfwd():
    agree(lambda tf: tf.jacfwd(tree, None)(X, Y))


@pytest.mark.parametrize("argnums", [2, -3, (0, 2), (0, 0), (0, -2), (), "0", (0, "1"), 1.0])
@all_apis
def test_argnums_that_name_no_argument_are_refused(api, argnums):
    with pytest.raises(RuntimeError, match=r"torchlayers: .*argnums"):
        getattr(tl, api)(f, argnums)(X, Y)


@structures
@all_apis
def test_arguments_may_be_structures(api, pack):
    def function(arg, z):
        x, y = pytree.tree_leaves(arg)[:2]
        return x * y.sum() * z

    agree(lambda tf: getattr(tf, api)(function, (0, 1))(pack(X, Y), X))


@structures
@all_apis
def test_outputs_may_be_structures(api, pack):
    agree(lambda tf: getattr(tf, api)(lambda x: pack(x * x, x.sum() ** 2))(X))


@structures
@jacobians
def test_aux_is_passed_through(api, pack):
    agree(lambda tf: getattr(tf, api)(lambda x: (x.sin(), pack(x * 2, Y)), has_aux=True)(X))


# torch.func rejects an aux that holds anything but tensors.
@pytest.mark.parametrize("options", [{}, {"chunk_size": 1}, {"chunk_size": 2}])
@jacobians
def test_aux_may_hold_anything(api, options):
    def function(x):
        return x * x, {"tensor": x * 3, "others": ["n", None, 4], "captured": Y}

    jacobian, aux = getattr(tl, api)(function, has_aux=True, **options)(X)
    close(jacobian, torch.diag(2 * X))
    assert torch.equal(aux.pop("tensor"), X * 3)
    assert torch.equal(aux.pop("captured"), Y)
    assert aux == {"others": ["n", None, 4]}


@jacobians
def test_nothing_returned_carries_a_wrapper(api):
    result = getattr(tl, api)(lambda x: ((x * x, x), [x * 3, x]), has_aux=True)(X)
    assert {level_of(leaf) for leaf in pytree.tree_leaves(result)} == {-1}


SHAPES = [(), (1,), (3,), (2, 3)]
EMPTY = [(0,), (2, 0)]


def norm_expanded_to(shape):
    return lambda x: x.square().sum().expand(shape)


@pytest.mark.parametrize(("shape_in", "shape_out"), [*itertools.product(SHAPES, SHAPES)])
@all_apis
def test_shapes_of_every_kind(api, shape_in, shape_out):
    function = norm_expanded_to(shape_out)
    result = agree(lambda tf: getattr(tf, api)(function)(torch.rand(shape_in)))
    order = 2 if api == "hessian" else 1
    assert result.shape == torch.Size(shape_out) + order * torch.Size(shape_in)


# torch.func fails on some of these.
@pytest.mark.parametrize("chunk_size", [None, 1, 2, "auto"])
@pytest.mark.parametrize(
    ("shape_in", "shape_out"),
    [
        *itertools.product(EMPTY, SHAPES + EMPTY),
        *itertools.product(SHAPES, EMPTY),
    ],
)
@all_apis
def test_tensors_without_elements(api, shape_in, shape_out, chunk_size):
    function = norm_expanded_to(shape_out)
    result = getattr(tl, api)(function, chunk_size=chunk_size)(torch.rand(shape_in).double())
    order = 2 if api == "hessian" else 1
    assert result.shape == torch.Size(shape_out) + order * torch.Size(shape_in)
    assert result.dtype == torch.float64


@pytest.mark.parametrize("chunk_size", [None, 2, "auto"])
@all_apis
def test_tensors_without_elements_among_others(api, chunk_size):
    transform = getattr(tl, api)
    outputs = transform(lambda x: (x**2, x[:0]), chunk_size=chunk_size)(X)
    close(outputs[0], transform(lambda x: x**2)(X))
    assert outputs[1].numel() == 0
    inputs = transform(lambda x, y: x**2 * y.sum().cos(), (0, 1), chunk_size=chunk_size)(X, X[:0])
    close(pytree.tree_leaves(inputs)[0], transform(lambda x: x**2)(X))


@all_apis
def test_arguments_and_outputs_of_different_dtypes(api):
    agree(lambda tf: getattr(tf, api)(torch.mul, (0, 1))(X, Y.double()))
    agree(lambda tf: getattr(tf, api)(lambda x: (x.double() ** 2, x.half()))(X))


@all_apis
def test_arguments_of_any_layout(api):
    for argument in (Y.t(), Y[:, ::2], torch.rand(2, 3, 2).transpose(0, 2)):
        agree(lambda tf, argument=argument: getattr(tf, api)(lambda y: y * y)(argument))


@all_apis
def test_an_argument_that_is_not_used_has_a_jacobian_of_zeros(api):
    agree(lambda tf: getattr(tf, api)(lambda x, y: x * x, (0, 1))(X, Y))
    agree(lambda tf: getattr(tf, api)(lambda x: torch.ones(2))(X))


@all_apis
def test_other_arguments_may_be_anything(api):
    agree(lambda tf: getattr(tf, api)(lambda x, n, name: x**n)(X, 3, "name"))


@all_apis
def test_writing_to_fresh_tensors(api):
    def function(x):
        y = torch.zeros(3)
        y[0] = x[1] * x[2]
        return y.add_(x).mul_(x)

    agree(lambda tf: getattr(tf, api)(function)(X))


# Derivatives of complex functions


@all_apis
def test_complex_arguments_are_refused(api):
    for error in (RuntimeError, ValueError):
        with pytest.raises(error, match=r"torchlayers: .* complex numbers \(torch.complex64\)"):
            getattr(tl, api)(lambda x: x * x)(X.cfloat())


@all_apis
def test_complex_outputs_are_refused(api):
    with pytest.raises(RuntimeError, match=r"torchlayers: .* complex numbers .* as output 1"):
        getattr(tl, api)(lambda x: (x, x.cfloat()))(X)


@all_apis
def test_complex_numbers_inside_are_fine(api):
    agree(lambda tf: getattr(tf, api)(lambda x: torch.fft.fft(x).abs())(X))


# Functions that can't be differentiated

MISUSE = {
    "an integer argument": (lambda x: x * 2, X.long()),
    "no tensor": (lambda x: x * 2, 2.0),
    "a structure with something else": (lambda x: x[0] * x[1], (X, 2.0)),
    "something else returned": (lambda x: (x, 2.0), X),
    "nothing returned": (lambda x: None, X),
    "an empty structure returned": (lambda x: (), X),
}


@pytest.mark.parametrize(("function", "argument"), MISUSE.values(), ids=MISUSE)
@all_apis
def test_misuse_is_rejected(api, function, argument):
    with pytest.raises((RuntimeError, ValueError), match=r"^torchlayers: "):
        getattr(tl, api)(function)(argument)


@jacobians
def test_with_aux_the_function_has_to_return_a_pair(api):
    with pytest.raises(RuntimeError, match=r"torchlayers: .*\(output, aux\)"):
        getattr(tl, api)(torch.sin, has_aux=True)(X)


# Chunks

CHUNK_SIZES = [1, 2, 3, 4, 6, 7, 100]


@pytest.mark.parametrize("preallocate", [False, True])
@pytest.mark.parametrize("chunk_size", CHUNK_SIZES)
@pytest.mark.parametrize("argnums", [0, (0, 1)])
def test_jacrev_in_chunks(argnums, chunk_size, preallocate):
    options = {"chunk_size": chunk_size, "_preallocate_and_copy": preallocate}

    def call(tf):
        jacobian = tf.jacrev(tree, argnums, **options)(X, Y)
        return pytree.tree_map(torch.Tensor.contiguous, jacobian)

    agree(call)


@pytest.mark.parametrize("chunk_size", [*CHUNK_SIZES, "auto"])
@pytest.mark.parametrize("argnums", [0, (0, 1), -1])
@pytest.mark.parametrize("api", ["jacfwd", "hessian"])
def test_jacfwd_and_hessian_in_chunks(api, argnums, chunk_size):
    transform = getattr(tl, api)
    in_chunks = transform(tree, argnums, chunk_size=chunk_size)(X, Y)
    close(in_chunks, transform(tree, argnums)(X, Y))


def test_preallocating_without_chunks():
    agree(lambda tf: tf.jacrev(tree, (0, 1), _preallocate_and_copy=True)(X, Y))


def test_preallocating_fills_one_tensor():
    result = tl.jacrev(f, chunk_size=2, _preallocate_and_copy=True)(X, Y)
    assert result.untyped_storage().nbytes() == result.numel() * 4


@pytest.mark.parametrize("budget", [1, 1000, 10**9])
@pytest.mark.parametrize("preallocate", [False, True])
def test_jacrev_in_chunks_found_by_measuring(budget, preallocate):
    options = {"memory_budget": budget, "_preallocate_and_copy": preallocate}
    result = tl.jacrev(tree, (0, 1), chunk_size="auto", **options)(X, Y)
    close(result, tl.jacrev(tree, (0, 1))(X, Y))


def test_a_chunk_size_of_one_needs_no_vmap():
    """Operators that vmap does not support are allowed: here a backward that reads a number."""

    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, g):
            assert g.sum().item() == 1
            return 2 * ctx.saved_tensors[0] * g

    close(agree(lambda tf: tf.jacrev(Reads.apply, chunk_size=1)(X)), torch.diag(2 * X))


# Several large tensors, computed one at a time


def parts(tensors, y):
    """Two outputs of 300 and 400 elements from inputs of the same sizes, and one further tensor of
    each."""
    a, b = tensors["a"], tensors["b"]
    return {"a": a.sin() * y, "b": [b * b * a.sum(), (a[0] * b).exp() + y]}


LARGE = (
    {"a": torch.linspace(0, 1, 300), "b": torch.linspace(-1, 1, 400).view(20, 20)},
    torch.ones(1),
)


@pytest.mark.parametrize("argnums", [0, (0, 1), (1, 0)])
@all_apis
def test_large_tensors_are_differentiated_by_one_at_a_time(api, argnums):
    def function(tensors, y):
        outputs = parts(tensors, y)
        return outputs["b"][0].sum() if api == "hessian" else outputs

    close(
        getattr(tl, api)(function, argnums)(*LARGE),
        getattr(torch.func, api)(function, argnums)(*LARGE),
    )


def test_jacfwd_runs_the_function_once_for_each_large_tensor():
    runs = []

    def function(a, b):
        runs.append(None)
        return (a * b).sum()

    tl.jacfwd(function, (0, 1))(torch.ones(300), torch.ones(300))
    assert len(runs) == 2
    tl.jacfwd(function, (0, 1))(torch.ones(3), torch.ones(3))
    assert len(runs) == 2 + 1


def test_large_tensors_are_written_to_once():
    def call(tf):
        a, b = X.repeat(100), X.repeat(100)
        jacobian = tf.jacfwd(lambda a, b: a.mul_(b).sum(0, keepdim=True), (0, 1))(a, b)
        return jacobian, a, b

    agree(call)


def test_random_numbers_are_drawn_once_for_all_tensors():
    def function(a, b):
        return (a.sum() + b.sum()) * torch.rand(3)

    tensors = torch.ones(300), torch.ones(300)
    by_a, by_b = tl.jacfwd(function, (0, 1), randomness="same")(*tensors)
    assert torch.equal(by_a, by_b)


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_jacfwd_of_random_functions(randomness):
    agree(lambda tf: tf.jacfwd(lambda x: x * torch.rand(3), randomness=randomness)(X))


@all_apis
def test_randomness_is_refused_by_default(api):
    def function(x):
        return x * x * torch.rand(3)

    if api == "jacrev":  # the function itself is not batched
        agree(lambda tf: tf.jacrev(function)(X))
    else:
        with pytest.raises(RuntimeError, match="random"):
            getattr(tl, api)(function)(X)


# Inside and around other transforms

OVER = {
    "vmap": lambda tf, j: tf.vmap(j, in_dims=(0, None))(torch.stack([X, X + 1]), Y),
    "grad": lambda tf, j: tf.grad(lambda x: j(x, Y).square().sum())(X),
    "jvp": lambda tf, j: tf.jvp(lambda x: j(x, Y), (X,), (X,)),
    "vjp": lambda tf, j: tf.vjp(lambda x: j(x, Y).sum(0), X)[1](torch.ones_like(j(X, Y)[0])),
    "jacrev": lambda tf, j: tf.jacrev(j)(X, Y),
    "jacfwd": lambda tf, j: tf.jacfwd(j)(X, Y),
}


@pytest.mark.parametrize("over", OVER.values(), ids=OVER)
@all_apis
def test_inside_other_transforms(api, over):
    agree(lambda tf: over(tf, getattr(tf, api)(f)))


@pytest.mark.parametrize("options", [{"chunk_size": 1}, {"chunk_size": 2}, {"chunk_size": "auto"}])
@pytest.mark.parametrize("over", OVER.values(), ids=OVER)
@all_apis
def test_in_chunks_inside_other_transforms(api, over, options):
    close(over(tl, getattr(tl, api)(f, **options)), over(tl, getattr(tl, api)(f)))


@pytest.mark.parametrize("name", ["grad", "vmap"])
def test_preallocating_inside_other_transforms(name):
    options = {"chunk_size": 2, "_preallocate_and_copy": True}
    close(OVER[name](tl, tl.jacrev(f, **options)), OVER[name](tl, tl.jacrev(f)))


@all_apis
def test_jacobian_of_other_transforms(api):
    agree(lambda tf: getattr(tf, api)(tf.grad(lambda x: (x**4).sum()))(X))
    agree(lambda tf: getattr(tf, api)(tf.vmap(torch.sin))(X))
    agree(lambda tf: getattr(tf, api)(lambda x: tf.jvp(torch.sin, (x,), (x,))[1])(X))


@all_apis
def test_plain_autograd_goes_through(api):
    def call(tf):
        x = X.clone().requires_grad_()
        cubed = getattr(tf, api)(lambda x, y: (x * f(x, y)).sum(0))
        return torch.autograd.grad(cubed(x, Y).square().sum(), x)

    agree(call)


@pytest.mark.parametrize(
    ("square", "seen_by_forward_mode"),
    [(torch.no_grad()(torch.square), True), (lambda x: torch.square(x).detach(), False)],
    ids=["no_grad", "detach"],
)
def test_forward_mode_goes_through_no_grad_and_not_through_detach(square, seen_by_forward_mode):
    def f(x):
        return (x * square(x)).sum()

    x = torch.tensor([2.0, 3.0])
    by_square = 2 * x * x if seen_by_forward_mode else 0 * x
    torch.testing.assert_close(tl.jacrev(f)(x), x * x)
    torch.testing.assert_close(tl.jacfwd(f)(x), x * x + by_square)
    torch.testing.assert_close(tl.hessian(f)(x).diag(), by_square / x)
    torch.testing.assert_close(tl.jacrev(tl.jacrev(f))(x).diag(), 0 * x)


@all_apis
def test_no_grad_around_is_obeyed(api):
    x = X.clone().requires_grad_()
    with torch.no_grad():
        assert not agree(lambda tf: getattr(tf, api)(f)(x, Y)).requires_grad


@all_apis
def test_modules(api):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    parameters = dict(module.named_parameters())

    def function(parameters, x):
        return tl.functional_call(module, parameters, (x,))

    agree(lambda tf: getattr(tf, api)(module)(X))
    agree(lambda tf: getattr(tf, api)(function)(parameters, X))


def test_jacrev_jacfwd_and_hessian_agree():
    def scalar(x):
        return (x.sin() * x.flip(0)).prod()

    x = X.double()
    close(tl.jacrev(tl.grad(scalar))(x), tl.hessian(scalar)(x))
    close(tl.jacfwd(tl.jacfwd(scalar))(x), tl.hessian(scalar)(x))
    close(tl.hessian(scalar)(x), torch.autograd.functional.hessian(scalar, x))


@all_apis
def test_the_transformed_function_is_named_as_the_function(api):
    transformed = getattr(tl, api)(f)
    assert transformed.__name__ == "f"
    assert transformed.__wrapped__ is f


@pytest.mark.parametrize("chunk_size", [None, 2, "auto"])
@pytest.mark.parametrize(("api", "total"), [("jacrev", 3), ("jacfwd", 6), ("hessian", 6)])
def test_progress_is_shown(capsys, api, total, chunk_size):
    result = getattr(tl, api)(f, 1, chunk_size=chunk_size, progress=True)(X, Y)
    close(result, getattr(tl, api)(f, 1)(X, Y))
    assert f"{total}/{total}" in capsys.readouterr().err


def test_progress_of_a_scalar_is_shown(capsys):
    close(tl.jacrev(torch.sum, progress=True)(X), torch.ones(3))
    assert "1/1" in capsys.readouterr().err


def test_a_scalar_needs_no_vmap():
    """Operators that vmap does not support are allowed: here a backward that reads a number."""

    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return (x * x).sum()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, g):
            return 2 * ctx.saved_tensors[0] * g.item()

    close(tl.jacrev(Reads.apply)(X), 2 * X)
    close(tl.jacrev(lambda x: Reads.apply(x).view(1, 1))(X), 2 * X.view(1, 1, 3))


@pytest.mark.parametrize("grad_mode", [True, False])
def test_scalar_jacobian_is_recorded_outside_according_to_grad_mode(grad_mode):
    x = X.clone().requires_grad_()
    with torch.set_grad_enabled(grad_mode):
        assert tl.jacrev(lambda x: (x**3).sum())(x).requires_grad == grad_mode


def test_errors_of_hvp_name_hvp():
    x, f = torch.ones(3), torch.sum
    calls = [
        lambda: tl.hvp(torch.sin, (x,), (x,)),
        lambda: tl.hvp(lambda x: None, (x,), (x,)),
        lambda: tl.hvp(f, (x,), (x,), has_aux=True),
        lambda: tl.hvp(f, (torch.arange(3),), (x,)),
        lambda: tl.hvp(f, (1.0,), (1.0,)),
        lambda: tl.hvp(f, (x,), (x, x)),
        lambda: tl.hvp(f, (x,), (x[:2],)),
        lambda: tl.hvp(f, (x,), x[:2], argnums=0),
        lambda: tl.hvp(f, (), ()),
        lambda: tl.vmap(lambda x: tl.hvp(torch.sin, (x,), (x,)))(torch.ones(2, 3)),
    ]
    for call in calls:
        with pytest.raises(tl.errors.TransformError, match=r"^torchlayers: hvp: "):
            call()
