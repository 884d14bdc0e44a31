"""Autograd's own means inside of transforms: requires_grad_, hooks, Functions."""

import pytest
import torch
import torch.func
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import torchlayers as tl
from tests.misuse.programs import BATCH, WithBackwardOnly, WithoutSetupContext, X
from tests.misuse.table import Misuse, MisuseTests
from torchlayers.errors import FunctionError, MissingDerivativeError


def with_hooks(x):
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        return (x * x).sum()


def with_dual_level(x):
    with forward_ad.dual_level():
        return x.sum()


HOOKS = (
    "torchlayers: saved-tensor hooks (checkpointing, save_on_cpu) don't work inside grad, vjp, "
    "jacrev and hessian: they would run between the layers. Use them around plain autograd, "
    "outside the transformed function."
)
AUTOGRAD = [
    Misuse(
        "requires_grad_ in grad",
        lambda tf: tf.grad(lambda x: x.clone().requires_grad_().sum())(X),
        RuntimeError,
        "You are attempting to call Tensor.requires_grad_()",
    ),
    Misuse(
        "requires_grad_ in vjp",
        lambda tf: tf.vjp(lambda x: x.clone().requires_grad_(), X),
        RuntimeError,
        "You are attempting to call Tensor.requires_grad_()",
    ),
    Misuse(
        "requires_grad_ in jvp",
        lambda tf: tf.jvp(lambda x: x.clone().requires_grad_(), (X,), (X,)),
        RuntimeError,
        "You are attempting to call Tensor.requires_grad_()",
    ),
    Misuse(
        "requires_grad_ in vmap",
        lambda tf: tf.vmap(lambda x: x.clone().requires_grad_())(BATCH),
        RuntimeError,
        "You are attempting to call Tensor.requires_grad_()",
    ),
    Misuse(
        "requires_grad_ on a fresh tensor",
        lambda tf: tf.grad(lambda x: (x * torch.ones(3).requires_grad_()).sum())(X),
        RuntimeError,
        "You are attempting to call Tensor.requires_grad_()",
    ),
    Misuse(
        "retain_grad in grad",
        lambda tf: tf.grad(lambda x: (x * 2).retain_grad())(X),
        RuntimeError,
        "You are attempting to call Tensor.retain_grad()",
    ),
    Misuse(
        "retain_grad in vmap",
        lambda tf: tf.vmap(lambda x: (x * 2).retain_grad())(BATCH),
        RuntimeError,
        "can't retain_grad on Tensor that has requires_grad=False",
    ),
    Misuse(
        "backward in grad",
        lambda tf: tf.grad(lambda x: (x * 2).sum().backward())(X),
        RuntimeError,
        "backward() called inside a functorch transform",
    ),
    Misuse(
        "backward in vjp",
        lambda tf: tf.vjp(lambda x: (x * 2).sum().backward(), X),
        RuntimeError,
        "backward() called inside a functorch transform",
    ),
    Misuse(
        "backward in jvp",
        lambda tf: tf.jvp(lambda x: (x * 2).sum().backward(), (X,), (X,)),
        RuntimeError,
        "backward() called inside a functorch transform",
    ),
    Misuse(
        "backward in vmap",
        lambda tf: tf.vmap(lambda x: (x * 2).sum().backward())(BATCH),
        RuntimeError,
        "backward() called inside a functorch transform",
    ),
    Misuse(
        "autograd.backward in grad",
        lambda tf: tf.grad(lambda x: torch.autograd.backward((x * 2).sum()))(X),
        RuntimeError,
        "backward() called inside a functorch transform",
    ),
    Misuse(
        "autograd.functional in grad",
        lambda tf: tf.grad(lambda x: torch.autograd.functional.jacobian(torch.sin, x).sum())(X),
        RuntimeError,
        "You are attempting to call Tensor.requires_grad_()",
    ),
    Misuse(
        "a dual level in jvp",
        lambda tf: tf.jvp(with_dual_level, (X,), (X,)),
        RuntimeError,
        "Nested forward mode AD is not supported",
    ),
    Misuse(
        "hooks in grad",
        lambda tf: tf.grad(with_hooks)(X),
        RuntimeError,
        HOOKS,
    ),
    Misuse(
        "hooks in grad_and_value",
        lambda tf: tf.grad_and_value(with_hooks)(X),
        RuntimeError,
        HOOKS,
    ),
    Misuse(
        "hooks in vjp",
        lambda tf: tf.vjp(with_hooks, X),
        RuntimeError,
        HOOKS,
    ),
    Misuse(
        "hooks in jvp in grad",
        lambda tf: tf.grad(lambda x: tf.jvp(with_hooks, (x,), (x,))[1])(X),
        RuntimeError,
        HOOKS,
    ),
    Misuse(
        "checkpoint in grad",
        lambda tf: tf.grad(lambda x: checkpoint(torch.sin, x, use_reentrant=False).sum())(X),
        RuntimeError,
        HOOKS,
    ),
    Misuse(
        "reentrant checkpoint in grad",
        lambda tf: tf.grad(lambda x: checkpoint(torch.sin, x, use_reentrant=True).sum())(X),
        FunctionError,
        "torchlayers: CheckpointFunction is made for plain autograd, and has no setup_context. "
        "Call it outside the transformed function.",
    ),
    Misuse(
        "a Function without setup_context and flag in vmap",
        lambda tf: tf.vmap(WithoutSetupContext.apply)(BATCH),
        FunctionError,
        "torchlayers: vmap does not know how to batch WithoutSetupContext. If its methods use "
        "torch's operators alone, set WithoutSetupContext.generate_vmap_rule = True; else give it "
        "a vmap staticmethod.",
    ),
    Misuse(
        "a Function without jvp in jvp",
        lambda tf: tf.jvp(WithBackwardOnly.apply, (X,), (X,)),
        MissingDerivativeError,
        "torchlayers: WithBackwardOnly has no jvp staticmethod. You must implement the jvp "
        "function for custom autograd.Function to use it with forward mode AD. Give it one, or "
        "instead of jvp, jacfwd, hessian and linearize use reverse mode: vjp, jacrev, or "
        "jacrev(jacrev(f)) for hessian(f).",
    ),
]


class TestAutograd(MisuseTests):
    table = AUTOGRAD


def test_saved_tensor_hooks_around_a_transform_are_refused_and_not_forbidden_for_ever():
    try:
        with (
            saved_tensors_hooks(lambda t: t, lambda t: t),
            pytest.raises(RuntimeError, match="saved-tensor hooks"),
        ):
            tl.grad(torch.sum)(X)
        assert torch._C._autograd._saved_tensors_hooks_is_enabled()
    finally:
        torch._C._autograd._saved_tensors_hooks_enable()
