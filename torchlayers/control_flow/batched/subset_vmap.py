"""Runs functions under a vmap over some of a batch's samples. NOTE [Samples of their own]."""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.control_flow.batched.samples import (
    SampleBatch,
    SampleRows,
    broadcast_flags,
    depends_on_levels,
    first_true,
    rebatch,
    unbatch,
    unbatch_all,
    without_function_modes,
)
from torchlayers.core import pytree
from torchlayers.core.errors import TransformError, location
from torchlayers.core.operator_rules.function_rules import RULES
from torchlayers.core.operators import higher_order
from torchlayers.core.torch_private import stack_depth, torch_c
from torchlayers.distributed import axes
from torchlayers.remat.ambient_state import TensorViewMode, apply_view_modes, innermost_view_mode
from torchlayers.remat.checkpoint import without_saved_tensor_hooks

if TYPE_CHECKING:
    from typing_extensions import Self

_torch: Any = torch  # its private names have no type stubs


class SubsetVmapMode(TensorViewMode):
    """Mode for functions under a vmap over a batch's samples: rebatches the tensors they use.

    It is constructed inside that vmap, and entered only around calls of the function.

    Args:
        batch: the samples.
        level: the level of the vmap.
        count: the number of samples that the function runs on.
        index: which samples those are; all of them if None.
    """

    def __init__(
        self, batch: SampleBatch, level: int, count: int, index: Tensor | None = None
    ) -> None:
        super().__init__()
        self.batch = batch
        self.level = level
        self.count = count
        self.index = index
        self.around = innermost_view_mode()
        self.is_covered = False
        self.mask = batch.mask
        zeros = torch.zeros(count, dtype=torch.bool, device=batch.token.device)
        self.token = _C.add_batch_dim(zeros, 0)
        self.taken: Tensor | None = None
        self.stand_in = 0
        self._known: dict[int, tuple[Tensor, Tensor]] = {}
        self._guarded: dict[int, tuple[Tensor, Tensor]] = {}

    def __enter__(self) -> "Self":
        if self.around is not None:
            self.around.is_covered = True
        super().__enter__()  # type: ignore[no-untyped-call]
        axes.enter_branch(self.batch.levels)
        return self

    def __exit__(self, *error: Any) -> None:
        axes.leave_branch()
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if self.around is not None:
            self.around.is_covered = False

    def call(self, func: Callable[..., Any], *args: Any) -> Any:
        """Calls func(*args) inside this mode."""
        with torch_c._EnableTorchFunction(), self:
            return func(*args)

    def guard(self, taken: Tensor | None, stand_in: int = 0) -> None:
        """Replaces samples where taken is False by the detached values of sample ``stand_in``.

        Their results are discarded, but an undefined value or derivative there could leak out.
        """
        self.taken = None if taken is None else _C.add_batch_dim(taken, 0)
        self.stand_in = stand_in
        self._guarded = {}

    def as_now(self) -> Callable[[], contextlib.AbstractContextManager[Any]]:
        guards = self.taken, self.stand_in, self._guarded

        @contextlib.contextmanager
        def again() -> Iterator[None]:
            now = self.taken, self.stand_in, self._guarded
            self.taken, self.stand_in, self._guarded = guards
            try:
                with self:
                    yield
            finally:
                self.taken, self.stand_in, self._guarded = now

        return again

    def guarded(self, x: Any) -> Any:
        """Replaces samples that are not taken in x, a tensor of this vmap."""
        if self.taken is None or not isinstance(x, Tensor) or not self._is_batched(x):
            return x
        rows, dim = _C.unbatched(x, self.level)
        assert dim is not None
        other = rows.select(dim, self.stand_in)
        return torch.where(self.taken, x, other.detach())

    def sample(self, x: Tensor) -> Tensor:
        """Returns x as the function sees it: a tensor from outside is rebatched at this level."""
        if _C.is_batched_alone(x, self.level, self.mask):  # created by the function
            return x
        if (guarded := self._guarded.get(id(x))) is not None:
            return guarded[1]
        # Rebatched tensors are cached, so a recomputed part of a function does not rebatch them
        # again: it would not save what rebatching saved the first time.
        with without_function_modes(), without_saved_tensor_hooks():
            return self._looked_up(x)

    def _looked_up(self, x: Tensor) -> Tensor:
        at_top = stack_depth() == self.level
        if (known := self._known.get(id(x))) is not None:
            rows = known[1]
        else:
            if self._has_made(x):
                return x
            is_own = self._is_batched(_C.shown(x))
            inner = x if is_own or self.around is None else self.around.sample(x)
            if not depends_on_levels(inner, self.mask, self.level):
                return inner
            rows = (
                self._mine_of_all(inner)
                if is_own
                else self.show(self.batch.unbatch(inner, self.index))
            )
            if at_top:
                self._known[id(x)] = x, rows
        if self.taken is None:
            return rows
        guarded = torch.where(self.taken, rows, self._other(rows))
        if at_top:
            self._guarded[id(x)] = x, guarded
        return guarded

    def _mine_of_all(self, x: Tensor) -> Tensor:
        """Selects each sample's row of random numbers drawn by both this vmap and the batch's."""
        numbers = (
            torch.arange(self.batch.number, device=x.device) if self.index is None else self.index
        )
        rows = self.batch.unbatch(x)
        return rows.index_select(0, self.show(numbers).unsqueeze(0)).squeeze(0)

    def show(self, rows: Tensor) -> Tensor:
        """Batches rows at this level."""
        return rebatch(rows, self.token, (self.level,))

    def rows(self, x: Any) -> Tensor:
        """Returns a result of the function with its samples in the first dimension."""
        if not isinstance(x, Tensor):
            x = torch.as_tensor(x, device=self.batch.token.device)
        x = _C.shown_at(self.sample(x), self.level)
        value, dim = _C.unbatched(x, self.level)
        if dim is None:
            return value.expand(self.count, *value.shape)
        return value if dim == 0 else value.movedim(dim, 0)

    def _is_batched(self, x: Tensor) -> bool:
        if _C.batched_levels(x) >> self.level & 1:
            return True
        return _C.any_functionalize() and self.level in unbatch_all(x)[1]

    def _has_made(self, x: Tensor) -> bool:
        """Whether the branch created x, and from no tensors that differ between samples.

        The branch may write to x. x may be a grad's wrapper: all tensors created above a grad are.
        """
        return _C.was_made_inside(x, self.level) and not _C.batched_levels(x) & self.mask

    def _other(self, x: Tensor) -> Tensor:
        rows = unbatch(x, self.token, (self.level,))
        return rows[self.stand_in].detach()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        call = _BY_SLOT.get(func, func)
        if self.is_covered:  # by an inner mode, which calls this one
            return call(*args, **kwargs)
        if func in _OF_THE_TENSOR:
            return func(*args, **{name: self._of_the_tensor(name, kwargs[name]) for name in kwargs})
        seen = pytree.map_all_tensors(self.sample, args)
        options = dict(
            zip(kwargs, pytree.map_all_tensors(self.sample, [*kwargs.values()]), strict=True)
        )
        if writes(func) and seen and seen[0] is not args[0]:
            self._refuse(func)
        if kwargs.get("out") is not None and options["out"] is not kwargs["out"]:
            self._refuse(func)
        if (rule := RULES.get(func)) is not None:
            with self:
                return rule(*seen, **options)
        if func is higher_order.custom_function_call and (rule := RULES.get(seen[0])) is not None:
            with self:
                return rule(*seen[1:], **options)
        return call(*seen, **options)

    def _of_the_tensor(self, name: str, value: Any) -> Any:
        return value if name == "inputs" else pytree.map_all_tensors(self.sample, [value])[0]

    def _refuse(self, func: Any) -> None:
        raise TransformError(
            "torchlayers: control flow on a batched predicate: a branch or loop body writes "
            f"({func.__name__}) to a batched tensor from outside it.{location()} Return the new "
            "value instead."
        )


# Autograd functions on a tensor itself, which torch.func's grad uses. They get the original tensor,
# since the rebatched one is not in its autograd graph.
_OF_THE_TENSOR = {
    Tensor.requires_grad_,
    Tensor.backward,
    Tensor.retain_grad,
    Tensor.register_hook,
    torch.autograd.grad,
    torch.autograd.backward,
    *(
        access
        for name in ("requires_grad", "is_leaf", "grad", "grad_fn")
        for access in (getattr(Tensor, name).__get__, getattr(Tensor, name).__set__)
    ),
}


# torch passes modes its own implementation; the operator goes through our slot. NOTE [Subscripts].
_BY_SLOT: dict[Any, Any] = {
    Tensor.__getitem__: operator.getitem,
    Tensor.__setitem__: operator.setitem,
}


@functools.cache
def writes(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return (
        name in ("__setitem__", "__set__")
        or (name.startswith("__i") and name.endswith("__") and name[3:-2] in _IN_PLACE)
        or (name.endswith("_") and not name.endswith("__") and name != "requires_grad_")
    )


_IN_PLACE = {"add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"}


def run_on_subset(
    func: Callable[..., Any],
    operands: Sequence[Any],
    batch: SampleBatch,
    *,
    taken: Tensor | None = None,
    index: Tensor | None = None,
) -> tuple[list[Any], pytree.TreeSpec]:
    """Runs func(*operands) on the samples; returns its results' leaves in rows, and their spec.

    Args:
        taken: whether each sample takes the function; the others are guarded.
        index: the samples to run on; all if None.
    """
    count = batch.number if index is None else len(index)
    arguments, spec = pytree.flatten(apply_view_modes(tuple(operands)))
    stand_in = 0 if taken is None else first_true(taken)
    rows = [batch.rows(leaf, index) for leaf in arguments]
    if taken is not None:
        rows = [_with_stand_ins(leaf, taken, stand_in) for leaf in rows]
    with _C.vmap_entry(count, "same") as level:
        inside = SubsetVmapMode(batch, level, count, index)
        if taken is not None:
            inside.guard(taken, stand_in)
        samples = [leaf.shown() if isinstance(leaf, SampleRows) else leaf for leaf in rows]
        results = inside.call(func, *pytree.unflatten(samples, spec))
        leaves, spec = pytree.flatten(results)
        return [None if leaf is None else inside.rows(leaf) for leaf in leaves], spec


def _with_stand_ins(leaf: Any, taken: Tensor, stand_in: int) -> Any:
    """Does the same as SubsetVmapMode.guarded for rows that are not batched yet."""
    if not isinstance(leaf, SampleRows):
        return leaf
    rows = leaf.values
    return SampleRows(torch.where(broadcast_flags(taken, rows), rows, rows[stand_in].detach()))
