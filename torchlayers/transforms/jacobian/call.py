"""The function that jacrev and jacfwd return."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchlayers.core import tracing_state
from torchlayers.core.layer_stack import transformed
from torchlayers.distributed.mesh import MeshExecution
from torchlayers.transforms.jacobian.basis import (
    refuse_complex,
)

if TYPE_CHECKING:
    pass


def jacobian_function(
    api: str,
    func: Callable[..., Any],
    jacobian_at: Callable[..., Any],
    traced: Callable[..., Any],
    spread: MeshExecution | None,
    randomness: str = "error",
) -> Callable[..., Any]:
    """Returns the function that computes the Jacobian, by `traced` while torch.compile traces."""

    def wrapper(*args: Any) -> Any:
        if tracing_state.is_tracing():
            tracing_state.refuse_strict_export(api)
            return tracing_state.run_unless_traced(traced, lambda: wrapper, *args)
        if tracing_state.is_exporting():
            return tracing_state.call_exported(wrapper, *args)
        refuse_complex(api, "argument", args)
        if spread is not None:
            return spread.call(jacobian_at, args, randomness)
        return jacobian_at(*args)

    return transformed(func, wrapper)
