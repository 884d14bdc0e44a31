"""jvp and jacfwd while Dynamo traces.

NOTE [Forward mode in Dynamo]
On Dynamo's fake tensors, torch.func's forward mode fails with internal errors of torch in many
nests of three transforms (2.13): jvp(jvp(jvp)), vmap(jacfwd(grad)), hessian(jacfwd(grad)). Its
reverse mode does not. A pullback is linear in the cotangents, so its own pullback, at any point,
pushes tangents forward; the parts of the first pullback that no result needs are removed by the
compiler as dead code. So inside another transform forward mode is done by reverse mode twice, and
elsewhere by torch.func's forward mode.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree, torch_func, tracing_state
from torchlayers.core.torch_private import functorch


def jvp(
    func: Callable[..., Any], primals: Any, tangents: Any, *, strict: bool, has_aux: bool
) -> Any:
    """Returns the result of torch.func.jvp."""
    if strict or not _is_inside():
        return torch_func.jvp(func, primals, tangents, strict=strict, has_aux=has_aux)
    tracing_state.refuse_strict_export("jvp inside another transform")
    seen: dict[str, Any] = {}

    def differentiable(*args: Any) -> Any:
        """Returns the outputs that have tangents, and as aux all outputs with func's aux."""
        output, aux = func(*args) if has_aux else (func(*args), ())
        leaves, seen["spec"] = pytree.flatten(output)
        with_tangents = [leaf for leaf in leaves if _has_tangent(leaf)]
        return with_tangents or [torch.zeros(())], (leaves, aux)  # vjp needs at least one output

    vjp: Any = torch_func.vjp  # its annotations do not cover has_aux
    outputs, pull_back, (leaves, aux) = vjp(differentiable, *primals, has_aux=True)
    zeros = [torch.zeros_like(leaf) for leaf in outputs]
    _, push_forward = vjp(pull_back, zeros)
    pushed = iter(push_forward(tangents)[0])
    every = [next(pushed) if _has_tangent(leaf) else torch.zeros_like(leaf) for leaf in leaves]
    result = (seen["spec"].unflatten(part) for part in (leaves, every))
    return (*result, aux) if has_aux else (*result,)


def jacfwd(
    func: Callable[..., Any], argnums: Any, has_aux: bool, randomness: str
) -> Callable[..., Any]:
    """Returns a function with the results of torch.func.jacfwd."""

    def jacobian_at(*args: Any) -> Any:
        if randomness == "different" or not _is_inside():
            return torch_func.jacfwd(func, argnums, has_aux, randomness=randomness)(*args)

        def output_twice(*args: Any) -> Any:
            output, aux = func(*args) if has_aux else (func(*args), ())
            return output, (output, aux)

        rows, (output, aux) = torch_func.jacrev(output_twice, argnums, has_aux=True)(*args)
        # jacrev's rows have the arguments' dtypes, jacfwd's the outputs'.
        jacobian = pytree.map_leaves(
            lambda leaf, row: pytree.map_leaves(lambda part: part.to(leaf.dtype), row),
            output,
            rows,
        )
        return (jacobian, aux) if has_aux else jacobian

    return jacobian_at


def _has_tangent(output: Tensor) -> bool:
    return output.is_floating_point() or output.is_complex()


def _is_inside() -> bool:
    """Whether the traced code is inside a transform."""
    return functorch.maybe_current_level() is not None


# Like torch.compiler.assume_constant_result, which would import Dynamo: Dynamo calls the function,
# at the levels that it has entered, and does not trace into it.
_is_inside._dynamo_marked_constant = True  # type: ignore[attr-defined]
