"""Saves the operator results that a checkpoint policy selects, and reuses them in recomputation."""

import functools
import itertools
import weakref
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import operator_schema, pytree
from torchlayers.core.device import CPU, is_on_host
from torchlayers.core.errors import RecomputationError
from torchlayers.core.tensors.storage import storage_of
from torchlayers.core.torch_private import OpOverload, TorchDispatchMode, dispatch_keys, torch_c
from torchlayers.remat.policies import Choice, NamedValueMode, Policy, checkpoint_name, choice


class SavedResult:
    """The result of one operator call: its leaves if it is saved; None if it is recomputed."""

    def __init__(self) -> None:
        self.leaves: list[Any] | None = None
        self.spec: Any = None
        self.devices: list[torch.device | None] = []
        self.versions: list[tuple[Tensor, int]] = []
        self.is_on_device = False
        self.is_written = False

    def keep(self, value: Any, how: Choice) -> None:
        leaves, self.spec = pytree.flatten(value)
        self.devices = [leaf.device if isinstance(leaf, Tensor) else None for leaf in leaves]
        self.leaves = [_save(leaf, how) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.is_on_device = how is not Choice.OFFLOAD
        self.versions = []
        for leaf in self.leaves:
            if isinstance(leaf, Tensor):
                self.note_version(leaf)

    def note_version(self, tensor: Tensor) -> None:
        self.versions.append((tensor, _version(tensor)))

    def forget(self) -> None:
        self.leaves = None
        self.versions = []

    def is_modified(self) -> bool:
        return any(_version(tensor) != version for tensor, version in self.versions)

    def result_of(self, op: Any) -> Any:
        assert self.leaves is not None
        if self.is_modified():
            raise RecomputationError(
                f"torchlayers: checkpoint: its policy saved a result of {op}, which has "
                "since been modified in place. Write to a clone, or let it be recomputed."
            )
        pairs = zip(self.leaves, self.devices, strict=True)
        result = [_alias(x.to(device)) if isinstance(x, Tensor) else x for x, device in pairs]
        return pytree.unflatten(result, self.spec)


def _version(x: Any) -> int:
    return x._version if isinstance(x, Tensor) and not x.is_inference() else 0


def _save(tensor: Tensor, how: Choice) -> Tensor:
    return tensor.to(CPU) if how is Choice.OFFLOAD and not is_on_host(tensor) else _alias(tensor)


_IN_PLACE_OR_VIEW = torch.DispatchKeySet(torch.DispatchKey.ADInplaceOrView)


def _alias(tensor: Tensor) -> Tensor:
    """Returns a detached tensor that shares the memory and the version counter."""
    with dispatch_keys(allowing=_IN_PLACE_OR_VIEW):
        return tensor.detach()


@functools.cache
def _may_be_saved(op: Any) -> bool:
    """Whether the operator's results may be saved instead of recomputed.

    Not if they alias its arguments, or it writes to these; nor if it draws random numbers, as
    skipping it would change all later draws. Operators in prim are queries, such as for a device.
    """
    return (
        op.namespace != "prim"
        and not operator_schema.writes(op)
        and not operator_schema.returns_alias(op)
        and not operator_schema.is_random(op)
    )


class _LiveResult:
    """Weak references to the tensors that an operator call returned."""

    def __init__(self, value: Any, result: SavedResult) -> None:
        leaves, self.spec = pytree.flatten(value)
        self.leaves = [weakref.ref(x) if isinstance(x, Tensor) else lambda x=x: x for x in leaves]
        self.versions = [_version(x) for x in leaves]
        self.result = result

    def can_be_kept(self) -> bool:
        if self.result.leaves is not None or self.result.is_written:
            return False
        leaves = [leaf() for leaf in self.leaves]
        return all(
            leaf is not None and _version(leaf) == version
            for leaf, version in zip(leaves, self.versions, strict=True)
        )

    def value(self) -> Any:
        return pytree.unflatten([leaf() for leaf in self.leaves], self.spec)


class SavingMode(NamedValueMode):
    """Mode active while the function first runs: asks the policy about each operator.

    Captured branches and while loops (HigherOrderOperators) are recomputed without asking it. So is
    a result that shares memory with an argument, which some schemas do not say (unsafe_split,
    _unsafe_view, which torch counts as new tensors), and one that the function writes to later.
    """

    supports_higher_order_operators = True

    def __init__(self, policy: Policy) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.policy = policy
        self.results: dict[Any, list[SavedResult]] = defaultdict(list)
        self._of_memory: dict[int | None, list[_LiveResult]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        value = func(*args, **kwargs)
        if not isinstance(func, OpOverload):
            return value
        if not _may_be_saved(func):
            self._forget(operator_schema.arguments_written(func, args, kwargs))
            return value
        result = SavedResult()
        self.results[func].append(result)
        how = choice(self.policy(func, *args, **kwargs))
        memory_of_args = {
            storage_of(x) for x in pytree.leaves((args, kwargs)) if isinstance(x, Tensor)
        }
        live = _LiveResult(value, result)
        shares_memory = False
        for leaf in pytree.leaves(value):
            if isinstance(leaf, Tensor) and (memory := storage_of(leaf)) is not None:
                if memory not in memory_of_args:
                    self._of_memory[memory] = [live]
                    continue
                shares_memory = True
                self._share(leaf, self._of_memory.setdefault(memory, []))
                self._of_memory[memory].append(live)
        if how is not Choice.RECOMPUTE and not shares_memory:
            result.keep(value, how)
        return value

    def __exit__(self, *error: Any) -> None:
        """Forgets what has been written to in a way that no operator tells: vmap moves memory that
        it makes room in (NOTE [Made inside] in csrc/values/local_storages.h)."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for result in itertools.chain(*self.results.values()):
            if result.is_modified():
                result.forget()

    def _share(self, leaf: Tensor, others: list[_LiveResult]) -> None:
        """Has the saved results of this memory watch the tensor, which counts its own writes."""
        for other in others:
            if other.result.leaves is not None and other.result.is_on_device:
                other.result.note_version(_alias(leaf))

    def _forget(self, written: list[Tensor]) -> None:
        """Marks saved results that an operator writes to, as a rule may, to be recomputed."""
        for tensor in written:
            for live in self._of_memory.get(storage_of(tensor), ()):
                live.result.is_written = True
                live.result.forget()

    def name(self, value: Tensor, name: str) -> None:
        memory = storage_of(_C.holder_of(value))
        answer = self.policy(checkpoint_name, value, name)
        how = choice(answer)
        for live in self._of_memory.get(memory, ()) if memory is not None else ():
            if answer is Choice.RECOMPUTE:
                live.result.forget()
            elif how is not Choice.RECOMPUTE and live.can_be_kept():
                with torch_c._DisableFuncTorch():  # below all layers, where it was computed
                    live.result.keep(live.value(), how)
                return  # the others share its memory


class ReplayMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode active during recomputation: returns the saved results in the order of the calls."""

    supports_higher_order_operators = True

    def __init__(self, results: dict[Any, list[SavedResult]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.results = {op: iter(those) for op, those in results.items()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if isinstance(func, OpOverload) and _may_be_saved(func):
            result = next(self.results.get(func, iter(())), None)
            if result is None:
                raise RecomputationError(
                    f"torchlayers: checkpoint: the function called {func} more often during "
                    "recomputation than in its first run. It must behave the same each time."
                )
            if result.leaves is not None:
                return result.result_of(func)
        return func(*args, **(kwargs or {}))
