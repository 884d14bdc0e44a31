"""Calls torch's control flow operators below all layers during capture."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.control_flow.traced.symbolic_sizes import free_symbols, size_carriers
from torchlayers.core import pytree
from torchlayers.core.errors import DataDependentError, untracked_capture
from torchlayers.core.operators import aten
from torchlayers.core.tensors.storage import storage_of, without_shared_elements
from torchlayers.core.torch_private import (
    AUTOGRAD,
    FakeTensor,
    HigherOrderOperator,
    TorchDispatchMode,
    dispatch_keys,
    fake_mode,
    key_set,
    torch_c,
)
from torchlayers.fx.aten_replacements import REPLACEMENTS
from torchlayers.fx.operator_tracer import with_subgraphs
from torchlayers.fx.subgraph_tracer import is_current_here
from torchlayers.transforms.functionalize import functional, unwrapped

_AUTOGRAD_AND_LAYERS = AUTOGRAD | key_set(
    _C.FRONT_KEY,
    _C.BACK_KEY,
    "FuncTorchDynamicLayerFrontMode",
    "FuncTorchDynamicLayerBackMode",
)


def call_below_layers(operator: Any, *operands: Any, shapes: Iterable[Sequence[int]]) -> Any:
    """Calls operator(*operands), which captures the functions among the operands as graphs.

    The operator is called below autograd and hidden from function modes, which would treat it as
    part of the user's program; its functions run in the dispatch state of the caller.

    Args:
        operator: the higher-order operator.
        operands: its operands; the last is a tuple of tensors, which the functions take last.
        shapes: the shapes of all tensors that the functions take.
    """
    layer = FunctionalizeLayer.on_top()
    *first, last = operands if layer is None else pytree.map_all_tensors(layer.unwrap, operands)
    sizes = free_symbols(shapes)  # NOTE [A size that a body reads]
    included = torch_c._dispatch_tls_local_include_set()
    excluded = torch_c._dispatch_tls_local_exclude_set()

    def inside(func: Callable[..., Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            with (
                torch_c._ForceDispatchKeyGuard(included, excluded),
                torch_c._EnableTorchFunction(),
                _RefuseCapturesMode(),  # type: ignore[no-untyped-call]
            ):
                return func(*inputs[: len(inputs) - len(sizes)])

        return run if layer is None else layer.around(run)

    with (
        torch.DisableTorchFunction(),
        dispatch_keys(without=_AUTOGRAD_AND_LAYERS),
    ):
        functions = [inside(first_arg) if callable(first_arg) else first_arg for first_arg in first]
        carriers = size_carriers(sizes)
        with with_subgraphs():
            results = operator(*functions, (*last, *carriers))
    return results if layer is None else pytree.map_tensors(layer.wrap, results)


class FunctionalizeLayer:
    """A functionalize layer on top of the stack. The control flow operators can't take functional
    tensors, so they get the unwrapped values, and the layer is active only in their functions."""

    def __init__(self, level: int) -> None:
        self._level = level

    @classmethod
    def on_top(cls) -> "FunctionalizeLayer | None":
        top = _C.top()
        return cls(top[1]) if top is not None and top[0] == "functionalize" else None

    def wrap(self, tensor: Tensor) -> Tensor:
        return functional(tensor, self._level)

    def unwrap(self, tensor: Tensor) -> Tensor:
        return unwrapped(tensor, self._level)

    def around(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps func to take and return unwrapped values."""

        def run(*inputs: Tensor) -> Any:
            results = func(*pytree.map_all_tensors(self.wrap, inputs))
            return pytree.map_tensors(self.unwrap, results)

        return run


class _RefuseCapturesMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Rejects captured tensors that closure conversion missed: they would become constants."""

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _OF_CONSTANTS:
            pytree.map_tensors(_refuse, (args, kwargs))
        # The body may be a graph that was captured before, with loops and branches in it.
        is_in_graph = isinstance(func, HigherOrderOperator) and not is_current_here()
        with with_subgraphs(nested=True) if is_in_graph else contextlib.nullcontext():
            return REPLACEMENTS.get(func, func)(*args, **kwargs)


_OF_CONSTANTS = (aten.lift_fresh.default, aten.lift_fresh_copy.default)


def _refuse(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, FakeTensor):
        raise DataDependentError(
            untracked_capture("compile", f"a tensor of shape {tuple(tensor.shape)}")
        )
    return tensor


def materialized(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Makes expanded tensors contiguous, so that no elements share memory."""
    return tuple(map(without_shared_elements, tensors))


def contiguous(x: Tensor) -> Tensor:
    """Returns the tensor, contiguous, with the strides of a newly allocated one.

    A contiguous tensor may have any stride along a dimension of size 1, and torch compares strides.
    """
    has_ones = any(isinstance(size, int) and size == 1 for size in x.shape)
    return x.clone(memory_format=torch.contiguous_format) if has_ones else x.contiguous()


def without_aliases(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Makes the results contiguous, and free of aliases of each other and of the inputs."""
    taken = {storage_of(x) for x in inputs}
    separate = []
    for x in results:
        x = contiguous(x.resolve_conj().resolve_neg())
        if storage_of(x) in taken:
            x = x.clone()
        taken.add(storage_of(x))
        separate.append(x)
    return separate


@contextlib.contextmanager
def with_symbols() -> Iterator[None]:
    """Provides the ShapeEnv that torch uses to check that no shape depends on the trip count."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode: Any = fake_mode()
    if mode is not None and mode.shape_env is None:
        mode.shape_env = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    yield
