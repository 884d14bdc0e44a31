"""Custom operators made with torch.library."""

import contextlib

import pytest
import torch
import torch.func

import torchlayers as tl


@torch.library.custom_op("torchlayers_tests::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor:
    return x * x


def keep_input(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


square.register_autograd(lambda ctx, g: 2 * ctx.saved_tensors[0] * g, setup_context=keep_input)
square.register_vmap(lambda info, in_dims, x: (square(x), in_dims[0]))

X = torch.tensor([1.0, 2.0, 3.0])


def times_square(x):
    return (square(x) * x).sum()


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: tl.grad(lambda x: square(x).sum())(X), 2 * X),
        (lambda: tl.grad(lambda x: tl.grad(lambda y: square(y).sum())(x).sum())(X), 2 + 0 * X),
        (lambda: tl.vjp(square, X)[1](torch.ones(3))[0], 2 * X),
        (lambda: tl.vmap(square)(X), X * X),
        (lambda: tl.vmap(tl.grad(square))(X), 2 * X),
        (lambda: tl.grad(lambda x: tl.vmap(square)(x).sum())(X), 2 * X),
        (lambda: tl.jacrev(square)(X), torch.diag(2 * X)),
        # The value of the operator counts too: to the outer levels it is not a constant.
        (lambda: tl.grad(lambda x: tl.grad(times_square)(x).sum())(X), 6 * X),
        (lambda: tl.grad(lambda x: tl.grad_and_value(times_square)(x)[1])(X), 3 * X**2),
    ],
    ids=[
        "grad",
        "grad(grad)",
        "vjp",
        "vmap",
        "vmap(grad)",
        "grad(vmap)",
        "jacrev",
        "grad(grad) of a product",
        "grad(grad_and_value) of a product",
    ],
)
def test_registered_autograd_works_inside_transforms(call, expected):
    torch.testing.assert_close(call(), expected)
    assert tl.current_stack() == ()


def test_torch_func_refuses_registered_autograd():
    """If this fails, torch.func has caught up: take the line out of docs/op_db.md."""
    with pytest.raises(RuntimeError, match="must override the setup_context"):
        torch.func.grad(lambda x: square(x).sum())(X)


def test_a_tangent_is_not_lost_where_there_is_no_forward_derivative():
    """torch, and with it torch.func, gives a tangent of zeros."""
    for call in (
        lambda: tl.jvp(square, (X,), (X,)),
        lambda: tl.jvp(tl.grad(times_square), (X,), (X,)),
        lambda: tl.hessian(times_square)(X),
    ):
        with pytest.raises(RuntimeError, match=r"torchlayers: jvp .* torchlayers_tests::square"):
            call()
        assert tl.current_stack() == ()
    assert torch.func.jvp(square, (X,), (X,))[1].tolist() == [0.0, 0.0, 0.0]


@contextlib.contextmanager
def operator(signature, kernel):
    """Defines an operator that lives as long as the block."""
    library = torch.library.Library("torchlayers_tests_again", "DEF")
    library.define("op" + signature)
    library.impl("op", kernel, "CompositeExplicitAutograd")
    try:
        yield torch.ops.torchlayers_tests_again.op.default
    finally:
        library._destroy()
        torch.ops.__dict__.pop("torchlayers_tests_again", None)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_an_operator_that_is_removed_and_made_again_is_not_confused_with_the_first():
    """NOTE [Operators come and go]: cached facts about the first must not be used for the
    second."""
    for _ in range(3):
        with operator("(Tensor x) -> Tensor", lambda x: x * 2) as op:
            assert tl.vmap(op)(X).tolist() == [2.0, 4.0, 6.0]
        with (
            operator("(Tensor(a!) x) -> Tensor(a!)", lambda x: x.mul_(2)) as op,
            pytest.raises(RuntimeError, match="mutate a captured tensor"),
        ):
            tl.grad(lambda x, op=op: (op(X) * x).sum())(X)
