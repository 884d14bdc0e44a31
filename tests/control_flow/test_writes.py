"""Branches and loop bodies that write to tensors made inside them or by the outer function."""

import pytest
import torch

import torchlayers as tl
from torchlayers.errors import TransformError

X = torch.tensor([0.5, 2.0, 7.0, 20.0], dtype=torch.double)


def made(*size):
    return torch.zeros(size, dtype=torch.double)


def in_branches(x, cond):
    def large():
        z = made(3)
        z[0] = x
        z[1:] = x.sin()
        z[2] *= x
        return z

    def small():
        z = made(3) + 1
        z[1:].mul_(x)
        return z

    return cond(x > 1, large, small).sum()


def written_before(x, cond):
    y = made(3)
    y[1] = x
    return cond(x > 1, lambda: y.sin() * x, lambda: y * y + x).sum()


def written_operand(x, cond):
    y = made(3)
    y[1] = x
    return cond(x > 1, lambda y: y.sin() * x, lambda y: y * y + x, y).sum()


def written_predicate(x, cond):
    is_large = torch.zeros((), dtype=torch.bool)
    is_large.copy_(x > 1)
    z = made(2) + 1
    z.mul_(x)
    return cond(is_large, lambda: z.log().sum() * x, lambda: (2 - z).log().sum())


def in_a_body(x, cond):
    """A while_loop, or a Python loop if `cond` is not tl.cond."""

    def body(y):
        z = made(3)
        z[0] = y * x
        z[1:].add_(y)
        z[2] += 1
        return z.sum() + 1

    if cond is tl.cond:
        return tl.while_loop(lambda y: y < 30, body, x * 1)
    y = x * 1
    while y < 30:
        y = body(y)
    return y


def in_python(predicate, true_fn, false_fn, *operands):
    return true_fn(*operands) if predicate else false_fn(*operands)


def gathering(predicate, true_fn, false_fn, *operands):
    return tl.cond(predicate, true_fn, false_fn, *operands, batched="gather")


PROGRAMS = [in_branches, written_before, written_operand, written_predicate, in_a_body]
NESTS = {
    "vmap": lambda f: tl.vmap(f),
    "vmap(grad)": lambda f: tl.vmap(tl.grad(f)),
    "vmap(jvp)": lambda f: tl.vmap(lambda x: tl.jvp(f, (x,), (x.cos(),))[1]),
    "vmap(hessian)": lambda f: tl.vmap(tl.hessian(f)),
    "grad(vmap)": lambda f: tl.grad(lambda x: tl.vmap(f)(x).sum()),
    "vmap(vmap)": lambda f: lambda x: tl.vmap(tl.vmap(f))(x.view(2, 2)).view(4),
}
ALONE = {
    "vmap(grad)": tl.grad,
    "grad(vmap)": tl.grad,
    "vmap(jvp)": lambda f: lambda x: tl.jvp(f, (x,), (x.cos(),))[1],
    "vmap(hessian)": tl.hessian,
}


@pytest.mark.parametrize("cond", [tl.cond, gathering], ids=["select", "gather"])
@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_batched_program_equals_a_loop_over_samples(program, nest, cond):
    if program is in_a_body and cond is gathering:
        cond = tl.cond
    found = NESTS[nest](lambda x: program(x, cond))(X)
    alone = ALONE.get(nest, lambda f: f)(lambda x: program(x, in_python))
    torch.testing.assert_close(found, torch.stack([alone(x) for x in X]))
    assert tl.current_stack() == ()


def test_branch_that_writes_to_an_outside_tensor_is_rejected():
    def writes(x):
        y = made(3)
        y[0] = x

        def large():
            y[1] = x
            return y

        return tl.cond(x > 1, large, lambda: y * 1)

    with pytest.raises(
        TransformError, match=r"writes \(__setitem__\) to a batched tensor from outside"
    ):
        tl.vmap(writes)(X)
