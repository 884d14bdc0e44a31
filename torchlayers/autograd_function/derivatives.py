"""A Function's own backward and jvp, called and checked."""

from collections.abc import Callable
from typing import Any

from torch.autograd import Function
from torch.autograd.function import BackwardCFunction

from torchlayers import tree
from torchlayers.autograd_function import generated, once
from torchlayers.autograd_function.context import check_name
from torchlayers.errors import FunctionError, MissingDerivativeError


def setup_context_of(function: Any) -> Callable[..., None]:
    """The Function's setup_context."""
    is_generated = generated.is_generated(function)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        function.setup_context(ctx, inputs, output)
        if not is_generated and isinstance(ctx, BackwardCFunction):
            for name in vars(ctx):  # a ctx of ours has looked at each when it was set
                check_name(name, function.__name__)

    return setup_context


def backward_of(function: Any) -> Callable[..., Any]:
    """The Function's backward, or its vjp, which is another name for it."""
    name = generated.name_of(function)

    def backward(ctx: Any, *grads: Any) -> Any:
        result = once.call(_chosen(function, name), name, ctx, grads)
        check_count(f"{name}.backward", result, len(ctx.needs_input_grad), "forward")
        return result

    return backward


def _chosen(function: Any, name: str) -> Callable[..., Any]:
    has_vjp = function.vjp is not Function.vjp
    has_backward = function.backward is not Function.backward
    if has_vjp and has_backward:
        raise FunctionError(
            f"torchlayers: {name} has both a backward and a vjp, which are two names "
            "for one thing. Delete one."
        )
    if not (has_vjp or has_backward):
        raise MissingDerivativeError(
            f"torchlayers: {name} has no backward staticmethod, which reverse mode "
            "needs. Give it one, or call it on x.detach() where its gradient does not count."
        )
    chosen: Callable[..., Any] = function.vjp if has_vjp else function.backward
    return chosen


def jvp_of(function: Any) -> Callable[..., Any]:
    """The Function's jvp."""
    name = generated.name_of(function)

    def jvp(ctx: Any, *tangents: Any) -> Any:
        if function.jvp is Function.jvp:
            raise MissingDerivativeError(
                f"torchlayers: {name} has no jvp staticmethod. You must implement the jvp function "
                "for custom autograd.Function to use it with forward mode AD. Give it one, or "
                "instead of jvp, jacfwd, hessian and linearize use reverse mode: vjp, "
                "jacrev, or jacrev(jacrev(f)) for hessian(f)."
            )
        return function.jvp(ctx, *tangents)

    return jvp


def is_boxed(function: Any) -> bool:
    """Whether backward takes the gradients as one list (torch's boxed_grads_call)."""
    return bool(getattr(function, "boxed_grads_call", False))


def has_vmap(function: Any) -> bool:
    return function.vmap is not Function.vmap


def check_count(backward: str, result: Any, inputs: int, forward: str) -> tuple[Any, ...]:
    """The gradients, one for each input of forward.

    torch takes more gradients than there are inputs if those are None.
    Raises:
        FunctionError: there are fewer, or more that are not None.
    """
    results = tree.as_tuple(result)
    if len(results) < inputs or any(extra is not None for extra in results[inputs:]):
        raise FunctionError(
            f"torchlayers: {backward} returned {len(results)} gradient"
            f"{'' if len(results) == 1 else 's'} for {inputs} input{'' if inputs == 1 else 's'} of "
            f"{forward}. Return one for each, None where there is no gradient."
        )
    return results[:inputs]


def reads_memory(error: RuntimeError) -> bool:
    """Whether NumPy, or a kernel of the Function's own, asked a batched tensor for the memory that
    it does not have."""
    return "data pointer" in str(error)


def explain_captured(function: Any, error: RuntimeError) -> None:
    """Raises what is wrong where forward met a tensor that its layers do not know."""
    if "outside that transform" in str(error):
        name = generated.name_of(function)
        raise FunctionError(
            f"torchlayers: {name}.forward uses a tensor that it was not given, of a "
            "transform that is active around the call. Its gradient would be lost. Pass the tensor "
            f"to {name}.apply as an argument."
        ) from error
