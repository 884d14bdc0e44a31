"""Calls a Function's setup_context, backward and jvp, and checks what they return."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction

from torchlayers.autograd_function import detached, generated_classes, once_differentiable
from torchlayers.autograd_function.context import check_fields
from torchlayers.core import pytree
from torchlayers.core.errors import EscapedTensorError, FunctionError, MissingDerivativeError


def setup_context_of(function: Any) -> Callable[..., None]:
    """Returns the Function's setup_context, with a check of the names it sets on ctx."""
    is_generated = generated_classes.is_generated(function)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        function.setup_context(ctx, inputs, output)
        if not is_generated and isinstance(ctx, BackwardCFunction):
            check_fields(ctx, function.__name__)

    return setup_context


def backward_of(function: Any) -> Callable[..., Any]:
    """Returns the Function's backward, which may be named vjp, with checks of its results."""
    name = generated_classes.name_of(function)

    def call_backward(ctx: Any, *grads: Any) -> Any:
        return once_differentiable.call(_find_method(function, name), name, ctx, grads)

    def backward(ctx: Any, *grads: Any) -> Any:
        try:
            result = detached.call(call_backward, f"{name}.backward", ctx, grads)
        except RuntimeError as error:
            explain_captured(function, error, "backward")
            raise
        check_count(f"{name}.backward", result, len(ctx.needs_input_grad), "forward")
        return result

    return backward


def _find_method(function: Any, name: str) -> Callable[..., Any]:
    has_vjp = function.vjp is not Function.vjp
    has_backward = function.backward is not Function.backward
    if has_vjp and has_backward:
        raise FunctionError(
            f"torchlayers: {name} has both a backward and a vjp, which are two names for the same "
            "method. Delete one."
        )
    if not (has_vjp or has_backward):
        raise MissingDerivativeError(
            f"torchlayers: {name} has no backward staticmethod, which reverse mode needs. Define "
            "one, or call it on x.detach() if its gradient is not needed."
        )
    chosen: Callable[..., Any] = function.vjp if has_vjp else function.backward
    return chosen


def jvp_of(function: Any) -> Callable[..., Any]:
    """Returns the Function's jvp, with checks of its results."""
    name = generated_classes.name_of(function)

    def jvp(ctx: Any, *tangents: Any) -> Any:
        if function.jvp is Function.jvp:
            raise MissingDerivativeError(
                f"torchlayers: {name} has no jvp staticmethod. You must implement the jvp function "
                "for custom autograd.Function to use it with forward mode AD. Define one, or use "
                "reverse mode (vjp, jacrev, or jacrev(jacrev(f)) for hessian(f)) instead of jvp, "
                "jacfwd, hessian and linearize."
            )
        try:
            result = detached.call(function.jvp, f"{name}.jvp", ctx, tangents)
        except RuntimeError as error:
            explain_captured(function, error, "jvp")
            raise
        _check_tensors(f"{name}.jvp", result, "tangent", "output")
        return result

    return jvp


def is_boxed(function: Any) -> bool:
    """Whether backward takes the gradients as one list (torch's boxed_grads_call)."""
    return bool(getattr(function, "boxed_grads_call", False))


def has_vmap(function: Any) -> bool:
    return function.vmap is not Function.vmap


def check_count(backward: str, result: Any, inputs: int, forward: str) -> tuple[Any, ...]:
    """Returns the gradients, one for each input of forward.

    As in torch, further gradients are allowed if they are None.
    Raises:
        FunctionError: there are fewer, or more that are not None, or one is not a tensor.
    """
    if inputs == 1 and isinstance(result, Tensor):
        return (result,)
    _check_tensors(backward, result, "gradient", "input")
    results = pytree.as_tuple(result)
    if len(results) < inputs or any(extra is not None for extra in results[inputs:]):
        raise FunctionError(
            f"torchlayers: {backward} returned {len(results)} "
            f"gradient{'' if len(results) == 1 else 's'} for {inputs} "
            f"input{'' if inputs == 1 else 's'} of {forward}. Return one for each, or None for no "
            "gradient."
        )
    return results[:inputs]


def _check_tensors(method: str, result: Any, derivative: str, of: str) -> None:
    for i, value in enumerate(pytree.as_tuple(result)):
        if not (value is None or isinstance(value, Tensor)):
            raise FunctionError(
                f"torchlayers: {method} returned {_kind(value)} for {of} {i} of forward. Return a "
                f"tensor, or None for no {derivative}; for several {of}s, a tuple of these."
            )


def _kind(value: Any) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


# Parts of torch's messages about a jvp's results, and what to say instead.
_TANGENTS = {
    "invalid number of forward gradients": "a number of tangents that differs from the number of "
    "forward's outputs. Return one for each",
    "different size than that of the original": "a tangent whose shape differs from its output's. "
    "Return a tangent of the output's shape",
    "new_grad_base": "None for an output that has a tangent. Return a tensor (zeros if the output "
    "does not depend on the inputs), or mark the output with ctx.mark_non_differentiable",
}


def explain_tangents(function: Any, error: RuntimeError) -> None:
    """Raises a FunctionError that says what is wrong with the tangents that jvp returned."""
    text = str(error)
    for words, wrong in _TANGENTS.items():
        if words in text:
            raise FunctionError(
                f"torchlayers: {generated_classes.name_of(function)}.jvp returned {wrong}."
            ) from error


def reads_memory(error: RuntimeError) -> bool:
    """Whether NumPy, or a kernel that the Function calls, tried to read the memory of a batched
    tensor, which has none."""
    return "data pointer" in str(error)


def reads_batched(error: BaseException | None, by: str = "vmap") -> bool:
    """Whether a Function read a captured tensor, not an operand, batched by the layer named `by`.

    NOTE [Captured by a Function].
    """
    words = f"a tensor batched by {by}"
    while error is not None and not (words in str(error) and _BY_A_FUNCTION in str(error)):
        error = error.__cause__
    return error is not None


_BY_A_FUNCTION = "was used by an autograd.Function outside that transform"


def explain_captured(function: Any, error: RuntimeError, method: str = "forward") -> None:
    """Raises a FunctionError if `error` is about a captured tensor of an active transform."""
    name = generated_classes.name_of(function)
    if reads_batched(error):
        raise FunctionError(
            f"torchlayers: {name}.{method} uses a captured tensor that an enclosing vmap has "
            f"batched. Its samples would be mixed up. Pass the tensor to {name}.apply as an "
            f"argument; or, if the methods of {name} use only torch operators, set "
            f"{name}.generate_vmap_rule = True instead of defining a vmap staticmethod."
        ) from error
    if isinstance(error, EscapedTensorError):
        raise FunctionError(
            f"torchlayers: {name}.{method} uses a captured tensor of an enclosing transform. Its "
            f"gradient would be lost. Pass the tensor to {name}.apply as an argument."
        ) from error
