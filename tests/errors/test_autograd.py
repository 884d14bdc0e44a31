"""Autograd features inside transforms: backward(), hooks, Functions."""

import torch
import torch.func
from torch.autograd import forward_ad

from tests.errors.programs import BATCH, WithBackwardOnly, WithoutSetupContext, X
from tests.errors.table import Misuse, MisuseTests
from torchlayers.errors import FunctionError, MissingDerivativeError, TransformError


def with_dual_level(x):
    with forward_ad.dual_level():
        return x.sum()


TORCHS_OF_BACKWARD = "backward() called inside a functorch transform"


def backward_in(layer):
    return (
        f"torchlayers: {layer} (level 1) can't run backward(), which adds to the .grad of tensors "
        f"that the transform does not track ({TORCHS_OF_BACKWARD}. This is not supported, please "
        "use functorch.grad or functorch.vjp instead or call backward() outside of functorch "
        "transforms.). Use torch.autograd.grad(loss, inputs), or torchlayers.grad."
    )


AUTOGRAD = [
    Misuse(
        "retain_grad in vmap",
        lambda tf: tf.vmap(lambda x: (x * 2).retain_grad())(BATCH),
        RuntimeError,
        "can't retain_grad on Tensor that has requires_grad=False",
    ),
    Misuse(
        "backward in grad",
        lambda tf: tf.grad(lambda x: (x * 2).sum().backward())(X),
        TransformError,
        backward_in("grad"),
    ),
    Misuse(
        "backward in vjp",
        lambda tf: tf.vjp(lambda x: (x * 2).sum().backward(), X),
        TransformError,
        backward_in("grad"),
    ),
    Misuse(
        "backward in jvp",
        lambda tf: tf.jvp(lambda x: (x * 2).sum().backward(), (X,), (X,)),
        TransformError,
        backward_in("jvp"),
    ),
    Misuse(
        "backward in vmap",
        lambda tf: tf.vmap(lambda x: (x * 2).sum().backward())(BATCH),
        TransformError,
        backward_in("vmap"),
    ),
    Misuse(
        "autograd.backward in grad",
        lambda tf: tf.grad(lambda x: torch.autograd.backward((x * 2).sum()))(X),
        TransformError,
        backward_in("grad"),
    ),
    Misuse(
        "a dual level in jvp",
        lambda tf: tf.jvp(with_dual_level, (X,), (X,)),
        RuntimeError,
        "Nested forward mode AD is not supported",
    ),
    Misuse(
        "a Function without setup_context and flag in vmap",
        lambda tf: tf.vmap(WithoutSetupContext.apply)(BATCH),
        FunctionError,
        "torchlayers: vmap does not know how to batch WithoutSetupContext. If its methods use only "
        "torch operators, set WithoutSetupContext.generate_vmap_rule = True; otherwise define a "
        "vmap staticmethod.",
    ),
    Misuse(
        "a Function without jvp in jvp",
        lambda tf: tf.jvp(WithBackwardOnly.apply, (X,), (X,)),
        MissingDerivativeError,
        "torchlayers: WithBackwardOnly has no jvp staticmethod. You must implement the jvp "
        "function for custom autograd.Function to use it with forward mode AD. Define one, or use "
        "reverse mode (vjp, jacrev, or jacrev(jacrev(f)) for hessian(f)) instead of jvp, jacfwd, "
        "hessian and linearize.",
    ),
]


class TestAutograd(MisuseTests):
    table = AUTOGRAD
