"""Writes to captured tensors, or to tensors that can't hold the result."""

import functools

import numpy as np
import torch
import torch.func

from tests.errors.programs import BATCH, X
from tests.errors.table import Misuse, MisuseTests
from torchlayers.errors import InPlaceError, TransformError

FIRST = torch.tensor([0])
WEIGHTS = torch.ones(2)


def writing(write):
    """A function that writes to a captured tensor."""
    captured = torch.ones(3)

    def f(x):
        write(captured, x)
        return (x * captured).sum()

    return f


def writing_to_the_outer_levels(tf):
    def f(x):
        y = x * 2
        return tf.grad(lambda z: y.mul_(z).sum())(x).sum()

    return tf.grad(f)(X)


def writing_unbatched(write):
    """A function that writes its sample into an unbatched tensor."""
    captured = torch.ones(2)

    def f(x):
        write(captured, x)
        return captured

    return f


def captured(op, layer="grad (level 1)"):
    return (
        f"torchlayers: {layer} can't let the in-place operator {op} mutate a captured tensor: its "
        "gradient would be silently wrong. Pass the tensor to the function as an argument, or use "
        "the out-of-place operator. (BatchNorm updates its statistics so: see "
        "torchlayers.replace_all_batch_norm_modules_.)"
    )


def no_room(op, whose, level=1):
    return (
        f"torchlayers: vmap (level {level}) can't write a batched value into a tensor from outside "
        f"the function that is not batched ({op}): it is {whose}, and has room for one sample, not "
        "for 3. Make a tensor inside the function (a clone of it, torch.zeros) and write to that, "
        "or use the out-of-place operator."
    )


CAPTURED = "`captured`, of shape (2,), which f captured"


class Counter:
    def __init__(self):
        self.seen = [torch.zeros(2)]

    def count(self, x):
        self.seen[0] += x
        return x


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x):
        return x - self.mean.lerp_(x, 0.1)


def scaled(by, x):
    return by.mul_(x)


def by_value(op, what="a leaf", level=1):
    return (
        f"torchlayers: grad (level {level}) can't let {op} write to a tensor that it "
        "differentiates with respect to: the derivative is taken at the value that the function "
        f"was called with ({what} Variable that requires grad is being used in an in-place "
        "operation.) Write to a copy (x = x.clone()), or use the out-of-place operator."
    )


WRITES = [
    Misuse(
        "grad: its argument",
        lambda tf: tf.grad(lambda x: x.mul_(2).sum())(X.clone()),
        InPlaceError,
        by_value("aten::mul_.Tensor"),
    ),
    Misuse(
        "vjp: its argument",
        lambda tf: tf.vjp(lambda x: x.exp_(), X.clone()),
        InPlaceError,
        by_value("aten::exp_"),
    ),
    Misuse(
        "jacrev: its argument",
        lambda tf: tf.jacrev(lambda x: x.add_(1))(X.clone()),
        InPlaceError,
        by_value("aten::add_.Tensor"),
    ),
    Misuse(
        "vmap of grad: its argument",
        lambda tf: tf.vmap(tf.grad(lambda x: x.mul_(2).sum()))(BATCH.clone()),
        InPlaceError,
        by_value("aten::mul_.Tensor", level=2),
    ),
    Misuse(
        "grad: a view of its argument",
        lambda tf: tf.grad(lambda x: x[1:].mul_(2).sum())(X.clone()),
        InPlaceError,
        by_value("aten::mul_.Tensor", "a view of a leaf"),
    ),
    Misuse(
        "grad: add_",
        lambda tf: tf.grad(writing(lambda y, x: y.add_(x)))(X),
        InPlaceError,
        captured("aten::add_.Tensor"),
    ),
    Misuse(
        "grad: mul_ by a number",
        lambda tf: tf.grad(writing(lambda y, x: y.mul_(2)))(X),
        InPlaceError,
        captured("aten::mul_.Tensor"),
    ),
    Misuse(
        "grad: copy_",
        lambda tf: tf.grad(writing(lambda y, x: y.copy_(x)))(X),
        InPlaceError,
        captured("aten::copy_"),
    ),
    Misuse(
        "grad: an item",
        lambda tf: tf.grad(writing(lambda y, x: y.__setitem__(0, x[0])))(X),
        InPlaceError,
        captured("aten::copy_"),
    ),
    Misuse(
        "grad: through a view",
        lambda tf: tf.grad(writing(lambda y, x: y[0].zero_()))(X),
        InPlaceError,
        captured("aten::zero_"),
    ),
    Misuse(
        "grad: resize_",
        lambda tf: tf.grad(writing(lambda y, x: y.resize_(4)))(X),
        InPlaceError,
        captured("aten::resize_"),
    ),
    Misuse(
        "grad_and_value: fill_",
        lambda tf: tf.grad_and_value(writing(lambda y, x: y.fill_(1)))(X),
        InPlaceError,
        captured("aten::fill_.Scalar"),
    ),
    Misuse(
        "vjp: sub_",
        lambda tf: tf.vjp(writing(lambda y, x: y.sub_(x)), X),
        InPlaceError,
        captured("aten::sub_.Tensor"),
    ),
    Misuse(
        "jvp: sub_",
        lambda tf: tf.jvp(writing(lambda y, x: y.sub_(x)), (X,), (X,)),
        InPlaceError,
        captured("aten::sub_.Tensor", "jvp (level 1)"),
    ),
    Misuse(
        "inner grad: a tensor of the outer",
        lambda tf: writing_to_the_outer_levels(tf),
        InPlaceError,
        captured("aten::mul_.Tensor", "grad (level 2)"),
    ),
    Misuse(
        "vmap of grad: div_",
        lambda tf: tf.vmap(tf.grad(writing(lambda y, x: y.div_(2))))(BATCH),
        InPlaceError,
        captured("aten::div_.Tensor", "grad (level 2)"),
    ),
    Misuse(
        "grad: out=",
        lambda tf: tf.grad(writing(lambda y, x: torch.sin(x, out=y)))(X),
        RuntimeError,
        "sin(): functions with out=... arguments don't support automatic differentiation",
    ),
    Misuse(
        "vmap: add_",
        lambda tf: tf.vmap(writing_unbatched(lambda y, x: y.add_(x)))(BATCH),
        InPlaceError,
        no_room("aten::add_.Tensor", CAPTURED),
    ),
    Misuse(
        "vmap: an item",
        lambda tf: tf.vmap(writing_unbatched(lambda y, x: y.__setitem__(0, x[0])))(BATCH),
        InPlaceError,
        no_room("aten::copy_", "a view of `captured`, of shape (), which f captured"),
    ),
    Misuse(
        "vmap: copy_",
        lambda tf: tf.vmap(writing_unbatched(lambda y, x: y.copy_(x)))(BATCH),
        InPlaceError,
        no_room("aten::copy_", CAPTURED),
    ),
    Misuse(
        "vmap: index_put_",
        lambda tf: tf.vmap(writing_unbatched(lambda y, x: y.index_put_((FIRST,), x[:1])))(BATCH),
        InPlaceError,
        no_room("aten::index_put_", CAPTURED),
    ),
    Misuse(
        "vmap: scatter_",
        lambda tf: tf.vmap(writing_unbatched(lambda y, x: y.scatter_(0, FIRST, x[:1])))(BATCH),
        InPlaceError,
        no_room("aten::scatter_.src", CAPTURED),
    ),
    Misuse(
        "vmap: masked_fill_",
        lambda tf: tf.vmap(writing_unbatched(lambda y, x: y.masked_fill_(x > 2, 0.0)))(BATCH),
        InPlaceError,
        no_room("aten::masked_fill_.Scalar", CAPTURED),
    ),
    Misuse(
        "vmap: an argument not batched",
        lambda tf: tf.vmap(lambda x, y: x.add_(y), in_dims=(None, 0))(torch.zeros(2), BATCH),
        InPlaceError,
        no_room(
            "aten::add_.Tensor", "`x`, of shape (2,), an argument of <lambda> that is not batched"
        ),
    ),
    Misuse(
        "vmap: a keyword argument's member",
        lambda tf: tf.vmap(lambda x, **state: state["at"][0].add_(x))(BATCH, at=[torch.zeros(2)]),
        InPlaceError,
        no_room(
            "aten::add_.Tensor",
            "`state['at'][0]`, of shape (2,), an argument of <lambda> that is not batched",
        ),
    ),
    Misuse(
        "vmap: what a method's object holds",
        lambda tf: tf.vmap(Counter().count)(BATCH),
        InPlaceError,
        no_room("aten::add_.Tensor", "`self.seen[0]`, of shape (2,), which count captured"),
    ),
    Misuse(
        "vmap: a buffer",
        lambda tf: tf.vmap(Norm())(BATCH),
        InPlaceError,
        no_room("aten::lerp_.Scalar", "`self.mean`, of shape (2,), which Norm() captured"),
    ),
    Misuse(
        "vmap: a global",
        lambda tf: tf.vmap(lambda x: WEIGHTS.sub_(x))(BATCH),
        InPlaceError,
        no_room("aten::sub_.Tensor", "`WEIGHTS`, of shape (2,), which <lambda> captured"),
    ),
    Misuse(
        "vmap: what a partial holds",
        lambda tf: tf.vmap(functools.partial(scaled, torch.ones(2)))(BATCH),
        InPlaceError,
        no_room(
            "aten::mul_.Tensor",
            "`args[0]`, of shape (2,), which functools.partial(scaled, ...) captured",
        ),
    ),
    Misuse(
        "vmap: a view of one",
        lambda tf: tf.vmap(writing_unbatched(lambda y, x: y.view(1, 2)[0, 1:].mul_(x[:1])))(BATCH),
        InPlaceError,
        no_room("aten::mul_.Tensor", "a view of `captured`, of shape (1,), which f captured"),
    ),
    Misuse(
        "vmap: what came from numpy",
        lambda tf: tf.vmap(lambda x: torch.from_numpy(np.zeros(2)).add_(x))(BATCH),
        InPlaceError,
        no_room("aten::add_.Tensor", "a tensor of shape (2,) that <lambda> did not create"),
    ),
    Misuse(
        "vmap: a sample of the outer in the inner",
        lambda tf: tf.vmap(lambda x: tf.vmap(lambda y: x.copy_(y))(BATCH))(BATCH.clone()),
        InPlaceError,
        no_room("aten::copy_", "`x`, of shape (2,), which <lambda> captured", level=2),
    ),
    Misuse(
        "vmap: out=",
        lambda tf: tf.vmap(writing_unbatched(lambda y, x: torch.sin(x, out=y)))(BATCH),
        InPlaceError,
        no_room("aten::sin.out", CAPTURED),
    ),
    Misuse(
        "vmap: data",
        lambda tf: tf.vmap(lambda x: x.data)(BATCH),
        TransformError,
        "torchlayers: vmap (level 1) has no `data` of its own (accessing `data` under vmap "
        "transform is not allowed). Use x.detach().",
    ),
]


class TestWrites(MisuseTests):
    table = WRITES
