"""Functions that find their operands captured, too, or differentiate with respect to parameters."""

import pytest
import torch

import torchlayers as tl


def scaled_by(factor, is_detached=False):
    """A Function whose methods use a tensor of the closure, and differentiate it by an operand.

    With is_detached its backward differentiates by a copy of x, as ODE solvers do.
    """

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, operand):
            ctx.save_for_backward(x, operand)
            return x * factor.square()

        @staticmethod
        def backward(ctx, g):
            x, operand = ctx.saved_tensors
            with torch.enable_grad():
                x = x.detach().requires_grad_() if is_detached else x
                output = x * factor.square()
                return torch.autograd.grad(output, (x, operand), g, allow_unused=True)

    return Scaled


X, FACTOR = torch.tensor(2.0), torch.tensor(3.0)


def test_a_parameter_is_a_constant_of_the_layer():
    factor = torch.nn.Parameter(FACTOR)
    assert tl.grad(lambda x: scaled_by(factor).apply(x, factor))(X) == 9
    scaled = scaled_by(factor, is_detached=True)
    gradients = tl.vmap(tl.grad(lambda x: tl.sequential_vmap(lambda x: scaled.apply(x, factor))(x)))
    assert torch.equal(gradients(torch.ones(2)), torch.full((2,), 9.0))


def test_the_parameter_that_comes_back_is_the_one_that_was_saved():
    factor = torch.nn.Parameter(FACTOR)
    seen = []

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, operand):
            ctx.save_for_backward(x, operand)
            return x * operand

        @staticmethod
        def backward(ctx, g):
            seen.append(ctx.saved_tensors[1])
            assert ctx.needs_input_grad == (True, False)
            return g * ctx.saved_tensors[1], None

    assert tl.grad(lambda x: Scaled.apply(x, factor))(X) == 3
    assert seen[0] is factor


def test_an_operand_may_be_captured_as_well():
    def output(x, factor):
        return scaled_by(factor).apply(x, factor)

    assert tl.grad(output, argnums=(0, 1))(X, FACTOR) == (9, 12)


def test_an_operand_of_an_outer_gradient_is_a_constant_of_the_inner_one():
    def output(x, factor):
        return scaled_by(factor).apply(x, factor)

    assert tl.grad(tl.grad(output), argnums=(0, 1))(X, FACTOR) == (0, 6)


def test_a_captured_tensor_that_is_no_operand_is_refused():
    def output(factor):
        return scaled_by(factor).apply(X.clone().requires_grad_(), factor.clone())

    with pytest.raises(tl.errors.FunctionError, match="uses a captured tensor of an enclosing"):
        tl.grad(output)(FACTOR)


def test_a_batched_backward_may_set_a_field_beside_a_constant():
    factor = torch.nn.Parameter(FACTOR)

    class Scaled(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, operand):
            return x * operand

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            x, operand = ctx.saved_tensors
            ctx.product = g * operand
            return ctx.product, g * x

    xs = torch.ones(2)
    gradient = tl.grad(lambda xs: tl.vmap(lambda x: Scaled.apply(x, factor))(xs).sum())
    assert torch.equal(gradient(xs), torch.full((2,), 3.0))
    hessian = tl.jacrev(tl.grad(lambda xs: tl.vmap(lambda x: Scaled.apply(x, factor))(xs).prod()))
    assert torch.equal(hessian(xs), 9 * (1 - torch.eye(2)))
