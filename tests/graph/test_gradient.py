"""A Gradient called like the original: under autograd, every transform, and nests of them."""

import pytest
import torch
import torch.func
from torch.autograd import forward_ad

import torchlayers as tl
from tests.support.calls import ambient
from tests.support.make_fx import make_fx
from torchlayers.core import pytree
from torchlayers.graph import Gradient, GraphError, differentiate
from torchlayers.graph.forward_backward import ForwardBackward


def function(x, w):
    """Has several outputs; one has no derivative, and one is not a tensor."""
    product = x * w
    return product.sin().cumsum(0), 3, product > 0


def recorded(function, *examples):
    return differentiate(make_fx(function)(*examples))


@pytest.fixture
def gradient():
    return recorded(function, *POINT)


def make_point():
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(4, generator=generator, dtype=torch.float64) for _ in range(2))


X, W = POINT = make_point()
BATCH = torch.stack([X, W, X - W])


def scalar(f):
    return lambda x, w: f(x, w)[0].sum()


def value(f):
    return lambda x, w: f(x, w)[0]


# Each takes the library and a function: the original or the differentiated one.
CALLS = {
    "grad": lambda tf, f: tf.grad(scalar(f), (0, 1))(*POINT),
    "grad(grad)": lambda tf, f: tf.grad(lambda x, w: tf.grad(scalar(f))(x, w).pow(2).sum(), (0, 1))(
        *POINT
    ),
    "grad(grad(grad))": lambda tf, f: tf.grad(
        lambda x: tf.grad(lambda x: tf.grad(scalar(f))(x, W).pow(2).sum())(x).pow(2).sum()
    )(X),
    "vjp": lambda tf, f: tf.vjp(value(f), *POINT)[1](X),
    "jvp": lambda tf, f: tf.jvp(value(f), POINT, POINT[::-1]),
    "jvp(jvp)": lambda tf, f: tf.jvp(
        lambda x: tf.jvp(lambda y: value(f)(y, x), (x,), (x,))[1], (X,), (W,)
    ),
    "jvp(grad)": lambda tf, f: tf.jvp(tf.grad(scalar(f)), POINT, POINT[::-1]),
    "grad(jvp)": lambda tf, f: tf.grad(lambda x: tf.jvp(value(f), (x, x), POINT)[1].sum())(X),
    "vmap": lambda tf, f: tf.vmap(value(f), (0, None))(BATCH, W),
    "vmap over the last dim": lambda tf, f: tf.vmap(value(f), (1, None), 1)(BATCH.T, W),
    "vmap(vmap)": lambda tf, f: tf.vmap(tf.vmap(value(f), (0, None)), (None, 0))(BATCH, BATCH),
    "vmap(grad)": lambda tf, f: tf.vmap(tf.grad(scalar(f), (0, 1)), (0, None))(BATCH, W),
    "grad(vmap)": lambda tf, f: tf.grad(
        lambda x, w: tf.vmap(value(f), (0, None))(x, w).sum(), (0, 1)
    )(BATCH, W),
    "vmap(jvp)": lambda tf, f: tf.vmap(lambda x: tf.jvp(value(f), (x, W), (x, x))[1])(BATCH),
    "jvp(vmap)": lambda tf, f: tf.jvp(
        lambda x: tf.vmap(lambda y: value(f)(y, W))(x), (BATCH,), (BATCH * 2,)
    ),
    "jacrev": lambda tf, f: tf.jacrev(value(f))(*POINT),
    "jacfwd": lambda tf, f: tf.jacfwd(value(f), 1)(*POINT),
    "hessian": lambda tf, f: tf.hessian(scalar(f))(*POINT),
    "vmap(hessian)": lambda tf, f: tf.vmap(tf.hessian(scalar(f)), (0, None))(BATCH, W),
    "functionalize": lambda tf, f: tf.functionalize(value(f))(*POINT),
    "grad(functionalize)": lambda tf, f: tf.grad(scalar(tf.functionalize(f)))(*POINT),
}


@pytest.mark.sweep
@pytest.mark.parametrize("library", [tl, torch.func], ids=["torchlayers", "torch.func"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_gradient_equals_the_original_under_transforms(gradient, call, library):
    before = ambient()
    torch.testing.assert_close(call(library, gradient), call(library, function))
    assert ambient() == before


MIXED = {
    "ours of theirs": lambda f: tl.vmap(torch.func.grad(scalar(f)), (0, None))(BATCH, W),
    "theirs of ours": lambda f: torch.func.jvp(tl.grad(scalar(f)), POINT, POINT[::-1]),
}


@pytest.mark.parametrize("call", MIXED.values(), ids=MIXED.keys())
def test_nests_of_both_libraries(gradient, call):
    torch.testing.assert_close(call(gradient), call(function))


def test_gradient_passes_gradcheck(gradient):
    inputs = tuple(x.clone().requires_grad_() for x in POINT)
    call = value(gradient)
    assert torch.autograd.gradcheck(
        call,
        inputs,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )
    assert torch.autograd.gradgradcheck(
        call, inputs, check_fwd_over_rev=True, check_rev_over_rev=True
    )


def test_under_no_grad(gradient):
    x, w = (x.clone().requires_grad_() for x in POINT)
    with torch.no_grad():
        value = gradient(x, w)[0]
        assert not value.requires_grad
        with forward_ad.dual_level():
            output = gradient(forward_ad.make_dual(x, w), w)[0]
            tangent = forward_ad.unpack_dual(output).tangent
    torch.testing.assert_close(value, function(X, W)[0])
    expected = tl.jvp(lambda x: function(x, W)[0], (X,), (W,))[1]
    torch.testing.assert_close(tangent, expected)


def squared_and_dropped(x):
    return torch.nn.functional.dropout(x, 0.5) * x


@pytest.mark.parametrize("library", [tl, torch.func], ids=["torchlayers", "torch.func"])
def test_rerun_for_a_derivative_draws_the_same_numbers(library):
    x = torch.linspace(1, 2, 64, dtype=torch.float64)
    call = recorded(squared_and_dropped, x)
    value, tangent = library.jvp(call, (x,), (x,))
    torch.testing.assert_close(tangent, 2 * value)
    assert 0 < (value == 0).sum() < 64

    def gradient(x):
        return library.grad(lambda x: call(x).sum())(x)

    first, second = library.jvp(gradient, (x,), (x,))
    torch.testing.assert_close(second, first)  # both linear in the mask
    assert 0 < (first == 0).sum() < 64


def test_the_second_backward_has_the_mask_of_the_first():
    x = torch.linspace(1, 2, 64, dtype=torch.float64, requires_grad=True)
    call = recorded(squared_and_dropped, x.detach())
    value = call(x)
    (first,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    state = torch.get_rng_state()
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(first, 2 * value / x)
    torch.testing.assert_close(second, 2 * value / x**2)


def test_under_torch_compile(gradient):
    step = torch.compile(scalar(gradient), backend="eager", fullgraph=True)
    inputs = tuple(x.clone().requires_grad_() for x in POINT)
    found = torch.autograd.grad(step(*inputs), inputs)
    torch.testing.assert_close(found, tl.grad(scalar(function), (0, 1))(*POINT))
    backward = torch.compile(gradient.df, backend="eager", fullgraph=True)
    _, captures = gradient.forward(*POINT)
    torch.testing.assert_close(backward(X, *captures), gradient.backward(captures, X))


def test_outputs_are_as_the_originals(gradient):
    x, w = (x.clone().requires_grad_() for x in POINT)
    y, number, positive = gradient(x, w)
    assert y.requires_grad
    assert number == 3
    assert not positive.requires_grad
    torch.testing.assert_close((y, positive), (function(x, w)[0], function(x, w)[2]))


def test_an_output_without_derivative_does_not_require_grad():
    call = recorded(lambda x: (x.sin(), x.detach().cos()), torch.zeros(3))
    x = torch.ones(3, requires_grad=True)
    assert [output.requires_grad for output in call(x)] == [True, False]


def test_missing_cotangent_is_zero():
    call = recorded(lambda x: (x.sin(), x.cos()), torch.zeros(3))
    x = torch.ones(3, requires_grad=True)
    call(x)[1].sum().backward()
    torch.testing.assert_close(x.grad, -x.sin())


@pytest.mark.parametrize(
    "original",
    [lambda x: x, lambda x: (x, x), lambda x: (x.sin(),) * 2, lambda x: x.view(-1)],
    ids=["an input", "an input twice", "an output twice", "a view"],
)
def test_outputs_that_are_one_tensor(original):
    x = torch.randn(3, requires_grad=True)
    gradient = recorded(original, x.detach())
    found, expected = (
        torch.autograd.grad(sum(y.sum() for y in pytree.leaves(f(x))), x)
        for f in (gradient, original)
    )
    torch.testing.assert_close(found, expected)


def test_forward_and_backward_by_hand(gradient):
    outputs, captures = gradient.forward(X, W)
    assert outputs[1] == 3
    cotangent = torch.ones(4, dtype=torch.float64)
    expected = tl.vjp(value(function), X, W)[1](cotangent)
    torch.testing.assert_close(gradient.backward(captures, cotangent), expected)
    assert not any(capture.requires_grad for capture in captures)


def test_fields_map_inputs_and_outputs_of_the_graphs(gradient):
    f, df = (list(graph.graph.nodes) for graph in (gradient.f, gradient.df))
    assert gradient.real_outputs == 3
    assert gradient.input_vjps == (0,)
    assert gradient.output_vjps == (0, 1)
    returned = f[-1].args[0]
    taken = [node for node in df if node.op == "placeholder"]
    inputs = [node for node in f if node.op == "placeholder"]
    captured = [inputs[i].name for i in gradient.captured_inputs]
    captured += [returned[i].name for i in gradient.captured_outputs]
    assert [node.name for node in taken][1:] == captured
    assert len(df[-1].args[0]) == len(gradient.output_vjps)


def test_repr_and_str(gradient):
    assert repr(gradient) == (
        "<Gradient: 3 outputs, gradients of inputs [0, 1], 2 inputs and 1 outputs captured, "
        "96 bytes saved>"
    )
    text = str(gradient)
    assert "torch.ops.aten.sin" in text.partition("backward:")[0]
    assert "torch.ops.aten.cos" in text.partition("backward:")[2]


def test_wrong_number_of_arguments_is_rejected(gradient):
    with pytest.raises(GraphError, match="too many positional"):
        gradient(*POINT, X)


def test_backward_names_what_is_missing(gradient):
    _, captures = gradient.forward(*POINT)
    with pytest.raises(GraphError, match=r"takes the 3 captured values .* got 2"):
        gradient.backward(captures[1:], X)
    with pytest.raises(GraphError, match=r"one cotangent for each .*\(there are 1\); got 2"):
        gradient.backward(captures, *POINT)


def test_stack_is_restored_after_an_error(gradient):
    before = ambient()
    with pytest.raises(GraphError):
        tl.vmap(tl.grad(lambda x: gradient(x)[0].sum()))(BATCH)
    assert tl.current_stack() == ()
    assert ambient() == before


def test_a_gradient_of_other_runnables_works():
    """differentiate_script and the FX differentiate both use this constructor."""
    halves = ForwardBackward(
        recorded(torch.sin, torch.zeros(2)).f,
        recorded(torch.sin, torch.zeros(2)).df,
        real_outputs=1,
        input_vjps=[0, 1],  # the second belongs to a temporary
        output_vjps=[0],
        captured_inputs=[],
        captured_outputs=[1],
        run_f=lambda inputs: (inputs[0].sin(), inputs[0].cos()),
        run_df=lambda values: (values[0] * values[2] if values[1] is None else None,),
    )
    made = Gradient(
        halves, flatten=lambda x: [x], unflatten=lambda outputs, args, kwargs: outputs[0]
    )
    x = torch.randn(2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(made, (x,))
    assert torch.autograd.gradgradcheck(made, (x,))
    assert made.saved_bytes is None
