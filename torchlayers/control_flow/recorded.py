"""Control flow in a recording, where a predicate has no value yet.

Without layers cond is torch's, with what its branches capture among its operands. Under layers,
which know no derivative of that, both branches are recorded, and torch.where chooses; so it is with
switch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from torchlayers import _C, torch_compile, tree
from torchlayers.control_flow.samples import RULES, base_of, quietly
from torchlayers.control_flow.structure import check_alike
from torchlayers.errors import DataDependentError, location

_torch: Any = torch  # whose types know no starred arguments


def is_recorded(x: Tensor) -> bool:
    """Whether it has no values, as tensors without data stand in for those of later calls."""
    with quietly():
        return isinstance(base_of(x), FakeTensor)


def _is_torchs() -> bool:
    """Whether torch.compile or torch.export records, which see themselves to what is captured."""
    return torch_compile.is_tracing() or (torch_compile.is_exporting() and not _C.any_layer())


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any]
) -> Any:
    if _is_torchs():
        return torch.cond(pred, true_fn, false_fn, tuple(operands))
    if _C.any_layer():
        sides = [("true_fn", true_fn, pred), ("false_fn", false_fn, ~pred)]
        return _chosen("cond", sides, operands)
    leaves, spec = tree.flatten(tuple(operands))
    lifted = _Lifted((true_fn, false_fn), leaves, spec, base_of(pred))
    return _torch.cond(pred, *lifted.functions, tuple(lifted.tensors))


def switch(index: Tensor, branches: Sequence[Callable[..., Any]], operands: Sequence[Any]) -> Any:
    if not _is_torchs():
        at = index.clamp(0, len(branches) - 1)
        sides = [(f"branches[{i}]", branch, at == i) for i, branch in enumerate(branches)]
        return _chosen("switch", sides, operands)
    if len(branches) == 1:
        return branches[0](*operands)
    middle = len(branches) // 2
    low, high = branches[:middle], branches[middle:]
    return cond(
        index < middle,
        lambda *given: switch(index, low, given),
        lambda *given: switch(index - middle, high, given),
        operands,
    )


def while_loop(cond_fn: Callable[[Any], Any], body_fn: Callable[[Any], Any], init: Any) -> Any:
    """
    Raises:
        DataDependentError: neither torch.compile nor torch.export records, or a layer is active.
    """
    if _is_torchs():
        from torch._higher_order_ops import while_loop as torchs

        return torchs(cond_fn, lambda carry: (body_fn(carry),), (init,))[0]  # type: ignore[no-untyped-call]
    raise DataDependentError(
        "torchlayers: compile: the trips of while_loop are decided by the value of a tensor, and "
        f"what is compiled is recorded before there is one.{location()} Use scan, or fori_loop "
        "with bounds that are ints; or compile the body, and leave the loop outside."
    )


def _chosen(
    api: str, sides: Sequence[tuple[str, Callable[..., Any], Tensor]], operands: Sequence[Any]
) -> Any:
    """What all return, chosen between. No cotangent of zero gets into those not taken."""
    first, results, chosen = "", None, None
    for name, func, taken in sides:
        with _Masked(taken) as masked:
            its = func(*tree.map_tensors(masked.sample, tuple(operands)))
        if chosen is None:
            first, results, chosen = name, its, its
            continue
        check_alike(api, results, first, its, name)
        leaves, spec = tree.flatten(chosen)
        pairs = zip(tree.leaves(its), leaves, strict=True)
        chosen = tree.unflatten(
            [old if old is None else torch.where(taken, new, old) for new, old in pairs], spec
        )
    return chosen


class _Outside(TorchFunctionMode):
    """Inside, tensors that come from outside are seen as `sample` shows them."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, Tensor] = {}

    def sample(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def own(self, values: Any) -> Any:
        """The values, known to be the function's own."""
        for leaf in tree.leaves(values):
            if isinstance(leaf, Tensor):
                self.made[id(leaf)] = leaf
        return values

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        seen = tree.map_all_tensors(self.sample, args)
        options = tree.map_all_tensors(self.sample, [*kwargs.values()])
        named = dict(zip(kwargs, options, strict=True))
        if (rule := RULES.get(func)) is not None:
            with self:
                return self.own(rule(*seen, **named))
        return self.own(func(*seen, **named))


class _Masked(_Outside):
    """Tensors from outside have a derivative where a predicate holds alone."""

    def __init__(self, taken: Tensor) -> None:
        super().__init__()
        self.taken = taken
        self.masked: dict[int, tuple[Tensor, Tensor]] = {}

    def sample(self, x: Tensor) -> Tensor:
        if id(x) in self.made or not (x.is_floating_point() or x.is_complex()):
            return x
        if id(x) not in self.masked:
            with quietly():
                self.masked[id(x)] = x, self.own(torch.where(self.taken, x, x.detach()))
        return self.masked[id(x)][1]


class _Swapped(_Outside):
    """Tensors from outside are replaced; those that have no replacement are noted."""

    def __init__(self, swapped: dict[int, Tensor]) -> None:
        super().__init__()
        self.swapped = swapped
        self.captured: dict[int, Tensor] = {}

    def sample(self, x: Tensor) -> Tensor:
        if id(x) in self.swapped:
            return self.swapped[id(x)]
        if id(x) not in self.made:
            self.captured[id(x)] = x
        return x


class _Lifted:
    """Functions of tensors alone: those of the operands, and then those that they capture.

    The functions run once to tell what these are, and nothing of that is recorded.
    """

    def __init__(
        self,
        functions: Sequence[Callable[..., Any]],
        leaves: Sequence[Any],
        spec: tree.TreeSpec,
        recorded: Any,
    ) -> None:
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        captured: dict[int, Tensor] = {}
        for func in functions:
            with _disable_current_modes(), recorded.fake_mode, torch.no_grad():
                seen = _Swapped({})
                given = seen.own(tree.unflatten(leaves, spec))
                with seen:
                    results = func(*given)
                for leaf in tree.leaves(results):
                    if isinstance(leaf, Tensor):
                        seen.sample(leaf)
            captured |= seen.captured
        self.tensors = [*(leaves[i] for i in places), *captured.values()]

        def lifted(func: Callable[..., Any]) -> Callable[..., Any]:
            def on_tensors(*tensors: Tensor) -> Any:
                given = list(leaves)
                for i, tensor in zip(places, tensors, strict=False):
                    given[i] = tensor
                swapped = dict(zip(captured, tensors[len(places) :], strict=True))
                mode = _Swapped(swapped)
                arguments = mode.own(tree.unflatten(given, spec))
                with mode:
                    results = func(*arguments)
                return tree.map_tensors(mode.sample, results)

            return on_tensors

        self.functions = [lifted(func) for func in functions]
