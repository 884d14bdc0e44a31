"""A Function's own backward and jvp, called and checked."""

from collections.abc import Callable
from typing import Any

from torch.autograd import Function

from torchlayers import tree
from torchlayers.autograd_function import once
from torchlayers.errors import FunctionError, MissingDerivativeError


def backward_of(function: Any) -> Callable[..., Any]:
    """The Function's backward, or its vjp, which is another name for it."""

    def backward(ctx: Any, *grads: Any) -> Any:
        result = once.call(_chosen(function), function.__name__, ctx, grads)
        _check_count(function, result, len(ctx.needs_input_grad))
        return result

    return backward


def _chosen(function: Any) -> Callable[..., Any]:
    has_vjp = function.vjp is not Function.vjp
    has_backward = function.backward is not Function.backward
    if has_vjp and has_backward:
        raise FunctionError(
            f"torchlayers: {function.__name__} has both a backward and a vjp, which are two names "
            "for one thing. Delete one."
        )
    if not (has_vjp or has_backward):
        raise MissingDerivativeError(
            f"torchlayers: {function.__name__} has no backward staticmethod, which reverse mode "
            "needs. Give it one, or call it on x.detach() where its gradient does not count."
        )
    chosen: Callable[..., Any] = function.vjp if has_vjp else function.backward
    return chosen


def jvp_of(function: Any) -> Callable[..., Any]:
    """The Function's jvp."""

    def jvp(ctx: Any, *tangents: Any) -> Any:
        if function.jvp is Function.jvp:
            raise MissingDerivativeError(
                f"torchlayers: {function.__name__} has no jvp staticmethod. You must implement the "
                "jvp function for custom autograd.Function to use it with forward mode AD. Give it "
                "one, or instead of jvp, jacfwd, hessian and linearize use reverse mode: vjp, "
                "jacrev, or jacrev(jacrev(f)) for hessian(f)."
            )
        return function.jvp(ctx, *tangents)

    return jvp


def is_boxed(function: Any) -> bool:
    """Whether backward takes the gradients as one list (torch's boxed_grads_call)."""
    return bool(getattr(function, "boxed_grads_call", False))


def _check_count(function: Any, result: Any, inputs: int) -> None:
    """torch takes more gradients than there are inputs if those are None."""
    results = tree.as_tuple(result)
    if len(results) < inputs or any(extra is not None for extra in results[inputs:]):
        raise FunctionError(
            f"torchlayers: {function.__name__}.backward returned {len(results)} "
            f"gradient{'' if len(results) == 1 else 's'} for {inputs} "
            f"input{'' if inputs == 1 else 's'} of forward. Return one for each, None where there "
            "is no gradient."
        )


def reads_memory(error: RuntimeError) -> bool:
    """Whether NumPy, or a kernel of the Function's own, asked a batched tensor for the memory that
    it does not have."""
    return "data pointer" in str(error)


def explain_captured(function: Any, error: RuntimeError) -> None:
    """Raises what is wrong where forward met a tensor that its layers do not know."""
    if "outside that transform" in str(error):
        raise FunctionError(
            f"torchlayers: {function.__name__}.forward uses a tensor that it was not given, of a "
            "transform that is active around the call. Its gradient would be lost. Pass the tensor "
            f"to {function.__name__}.apply as an argument."
        ) from error
