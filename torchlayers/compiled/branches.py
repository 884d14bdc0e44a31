"""torch.cond in a recording: both branches are recorded, each as a graph of its operands."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from torchlayers import tree
from torchlayers.errors import DataDependentError, location

_COND = torch.ops.higher_order.cond


class Branches(TorchFunctionMode):
    """Inside, torch.cond's branches return tuples, as its derivative and inductor want them."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return (_cond if func is _COND else func)(*args, **(kwargs or {}))


def _cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any
) -> Any:
    specs: list[tree.TreeSpec] = []

    def of_tuples(branch: Callable[..., Any]) -> Callable[..., Any]:
        def tupled(*given: Any) -> tuple[Any, ...]:
            with _NothingCaptured():  # type: ignore[no-untyped-call]
                leaves, spec = tree.flatten(branch(*given))
            specs.append(spec)
            return tuple(leaves)

        return tupled

    results = _COND(pred, of_tuples(true_fn), of_tuples(false_fn), operands)
    return tree.unflatten(results, specs[0])


class _NothingCaptured(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses tensors that a branch captures: its graph would hold them as they are now."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not torch.ops.aten.lift_fresh.default:
            tree.map_tensors(_refuse, (args, kwargs))
        return func(*args, **kwargs)


def _refuse(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, FakeTensor):
        raise DataDependentError(
            "torchlayers: compile: a branch of torch.cond captures a tensor of shape "
            f"{tuple(tensor.shape)}.{location()} Pass it among cond's operands."
        )
    return tensor
