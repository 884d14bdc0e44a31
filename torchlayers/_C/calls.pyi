"""Calls of transforms and of modules."""

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from torch import Tensor
from torch.nn import Module

P = ParamSpec("P")
R = TypeVar("R")

def call_module(
    module: Module,
    given: dict[str, Tensor] | Sequence[dict[str, Tensor]],
    args: Any,
    kwargs: dict[str, Any] | None,
    tie_weights: bool,
    strict: bool,
    settings: tuple[Any, ...],
    /,
) -> Any: ...
def with_tensors_put_in(func: Callable[..., Any], /) -> Callable[..., Any]: ...
def run_module(
    module: Module,
    func: Callable[..., Any],
    given: dict[str, Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    tie_weights: bool,
    settings: tuple[Any, ...],
    /,
) -> Any: ...
def unplanned_names(module: Module, given: dict[str, Tensor], /) -> list[str]: ...

class Recorded:
    @property
    def outputs(self) -> list[Tensor]: ...

def call_along(which: int, x: Tensor, axis: str, /) -> Tensor | None: ...
def call_vmap(given: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any: ...
def call_vmap_of_leaves(
    given: tuple[Any, ...],
    samples: tuple[list[Any], Any, list[int | None], int],
    kwargs: dict[str, Any],
    /,
) -> Any: ...
def call_grad(
    given: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any], /
) -> tuple[Any, Any, Any]: ...
def call_vjp(
    given: tuple[Any, ...], args: tuple[Any, ...], for_rows: bool, /
) -> tuple[Recorded, Any, Any]: ...
def call_vjp_fn(
    recorded: Recorded, cotangents: Any, retain_graph: bool, create_graph: bool, /
) -> Any: ...
def call_vjp_of_leaves(
    recorded: Recorded, cotangents: list[Tensor | None], create_graph: bool, /
) -> list[Tensor]: ...
def call_jvp(
    given: tuple[Any, ...], primals: tuple[Any, ...], tangents: Any, are_leaves: bool, /
) -> tuple[Any, Any, Any]: ...
def wraps(
    wrapper: Callable[P, R],
    func: Callable[..., Any],
    assigned: tuple[str, ...],
    dropped: tuple[str, ...],
    /,
) -> Callable[P, R]: ...
