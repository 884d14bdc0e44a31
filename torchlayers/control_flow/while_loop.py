"""while_loop: repeats a function as long as a predicate is true."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.control_flow import all_paths
from torchlayers.control_flow.batched.samples import (
    SampleBatch,
    SampleRows,
    base_values,
    batch_of,
    first_true,
    unbatch_all,
    without_function_modes,
)
from torchlayers.control_flow.batched.subset_vmap import SubsetVmapMode
from torchlayers.control_flow.checks import (
    Carry,
    check_choice,
    check_predicate,
)
from torchlayers.control_flow.traced import dispatch
from torchlayers.core import pytree, tracing_state, varying_values
from torchlayers.core.annotations import T
from torchlayers.core.function_checks import check_function
from torchlayers.random.seeded import BranchDraws
from torchlayers.remat.ambient_state import apply_view_modes

Strategy: TypeAlias = Literal["hold", "drop"]
_STRATEGIES = get_args(Strategy)


@tracing_state.uncompiled
def while_loop(
    cond_fn: Callable[[T], bool | Tensor],
    body_fn: Callable[[T], T],
    init: T,
    *,
    batched: Strategy = "hold",
) -> T:
    """Starts with ``carry = init``; while cond_fn(carry) is true, sets ``carry = body_fn(carry)``.

    In a batch, each sample has its own trip count: the loop runs until all samples have finished,
    and each gets the value and derivatives of its own last carry. Reverse mode works: autograd
    records the trips as it does for Python's ``while``.

    Args:
        cond_fn: takes the carry; returns a bool, or a tensor that holds one.
        body_fn: takes the carry; returns the next one, with the same structure, shapes and dtypes.
            Neither function writes to tensors that it did not create; both may capture tensors.
        init: the initial carry: a tensor, or a pytree of tensors and numbers.
        batched: how to treat samples that finish before others. ``"hold"``: they keep their carry,
            and a sample still running is computed in their place. ``"drop"``: they are removed
            from the batch, which pays off if trips are expensive and their counts differ.
    Returns:
        The final carry.
    Raises:
        TransformError: cond_fn does not return one bool.
        StructureError: body_fn returns a carry with another structure, shape or dtype.
    Example:
        >>> def halvings(x):
        ...     start = x, torch.zeros((), dtype=torch.int64)
        ...     return torchlayers.while_loop(
        ...         lambda carry: carry[0] > 1, lambda carry: (carry[0] / 2, carry[1] + 1), start
        ...     )
        >>> torchlayers.vmap(halvings)(torch.tensor([0.5, 2.0, 12.0]))
        (tensor([0.5000, 1.0000, 0.7500]), tensor([0, 1, 4]))

    Source: jax.lax.while_loop, torch._higher_order_ops.while_loop.
    """
    check_choice("while_loop", "batched", batched, _STRATEGIES)
    if tracing_state.is_tracing():
        if tracing_state.is_inside("Grad", "Jvp", "Vmap"):
            return _while_loop_uncompiled(cond_fn, body_fn, init, batched=batched)
        return dispatch.while_loop(cond_fn, body_fn, init)
    check_function("while_loop", "cond_fn", cond_fn)
    check_function("while_loop", "body_fn", body_fn)
    with BranchDraws() as draws:
        draws.start()
        return _loop(
            cond_fn, body_fn, Carry("while_loop", init, "body_fn"), apply_view_modes(init), batched
        )


def _loop(
    cond_fn: Callable[[Any], Any],
    body_fn: Callable[[Any], Any],
    checks: Carry,
    carry: Any,
    batched: str,
) -> Any:
    while True:
        pred = _predicate(cond_fn, carry)
        if isinstance(pred, bool):
            if not pred:
                return carry
        else:
            if dispatch.is_recorded(pred):
                return dispatch.while_loop(cond_fn, body_fn, carry)
            if varying_values.varies(pred):
                return all_paths.repeat(body_fn, checks, carry, pred)
            values, levels = unbatch_all(pred)
            if levels:
                batch = batch_of(pred, values, levels)
                with without_function_modes():
                    loop = _BatchedLoop(cond_fn, body_fn, checks, batch, values.flatten())
                    carry, goes_on = (loop.drop if batched == "drop" else loop.hold)(carry)
                if not goes_on:
                    return carry
                continue
            if not base_values(values):
                return carry
        carry = checks.checked(body_fn(carry))


def _predicate(cond_fn: Callable[[Any], Any], carry: Any) -> Any:
    pred = cond_fn(carry)
    check_predicate("while_loop", "the result of cond_fn", pred)
    return pred if isinstance(pred, bool) else apply_view_modes(pred.reshape(()))


class _BatchedLoop:
    """The rest of a loop, from the first trip at which samples differ in whether they continue.

    ``hold`` and ``drop`` return the carry and whether the caller's loop has to continue, which it
    does if the predicate turns out to be batched by another vmap too.
    """

    def __init__(
        self,
        cond_fn: Callable[[Any], Any],
        body_fn: Callable[[Any], Any],
        checks: Carry,
        batch: SampleBatch,
        alive: Tensor,
    ) -> None:
        self.cond_fn = cond_fn
        self.body_fn = body_fn
        self.checks = checks
        self.batch = batch
        self.alive = alive

    def hold(self, carry: Any) -> tuple[Any, bool]:
        count = self.batch.number
        values = [self.batch.rows(leaf) for leaf in pytree.leaves(carry)]
        with _C.vmap_entry(count, "same") as level:
            inside = SubsetVmapMode(self.batch, level, count)
            leaves = [leaf.shown() if isinstance(leaf, SampleRows) else leaf for leaf in values]
            alive, goes_on = self.alive, False
            while not goes_on and (left := base_values(alive.count_nonzero())):
                if left == count:
                    leaves = self.trip(leaves, inside)
                else:
                    inside.guard(alive, first_true(alive))
                    new = self.trip([inside.guarded(leaf) for leaf in leaves], inside)
                    leaves = [
                        _hold_ended(inside.taken, *pair) for pair in zip(new, leaves, strict=True)
                    ]
                    inside.guard(None)
                alive, goes_on = self.ask(leaves, alive, inside)
            rows = [leaf if leaf is None else inside.rows(leaf) for leaf in leaves]
        return self.put_back(rows), goes_on

    def drop(self, carry: Any) -> tuple[Any, bool]:
        alive, goes_on = self.alive, False
        index = torch.arange(self.batch.number, device=alive.device)
        rows = [self.in_rows(leaf) for leaf in pytree.leaves(carry)]
        ended: list[tuple[Tensor, list[Any]]] = []
        while len(index) and not goes_on:
            if not base_values(alive.all()):
                stay, end = alive.nonzero().squeeze(1), (~alive).nonzero().squeeze(1)
                ended.append((index[end], [_picked(leaf, end) for leaf in rows]))
                index, rows = index[stay], [_picked(leaf, stay) for leaf in rows]
                alive = alive[stay]
                continue
            with _C.vmap_entry(len(index), "same") as level:
                inside = SubsetVmapMode(self.batch, level, len(index), index)
                leaves = [leaf if leaf is None else inside.show(leaf) for leaf in rows]
                while base_values(alive.all()) and not goes_on:
                    leaves = self.trip(leaves, inside)
                    alive, goes_on = self.ask(leaves, alive, inside)
                rows = [leaf if leaf is None else inside.rows(leaf) for leaf in leaves]
        ended.append((index, rows))
        back = torch.cat([index for index, _ in ended]).argsort()
        columns = zip(*(rows for _, rows in ended), strict=True)
        return self.put_back(
            [column[0] if column[0] is None else torch.cat(column)[back] for column in columns]
        ), goes_on

    def trip(self, leaves: list[Any], inside: SubsetVmapMode) -> list[Any]:
        carry = pytree.unflatten(leaves, self.checks.spec)
        new = inside.call(self.body_fn, carry)
        return [
            inside.sample(leaf) if isinstance(leaf, Tensor) else leaf
            for leaf in self.checks.leaves(new)
        ]

    def ask(self, leaves: list[Any], alive: Tensor, inside: SubsetVmapMode) -> tuple[Tensor, bool]:
        """Returns which samples continue, and whether another vmap's samples differ in that too."""
        pred = inside.call(_predicate, self.cond_fn, pytree.unflatten(leaves, self.checks.spec))
        if isinstance(pred, bool):
            return alive & pred, False
        values, levels = unbatch_all(pred)
        return (alive & values, False) if levels in ((), (inside.level,)) else (alive, True)

    def in_rows(self, leaf: Any) -> Any:
        if leaf is None:
            return None
        x = leaf if isinstance(leaf, Tensor) else torch.as_tensor(leaf, device=self.alive.device)
        rows = self.batch.rows(x)
        return (
            rows.values if isinstance(rows, SampleRows) else x.expand(self.batch.number, *x.shape)
        )

    def put_back(self, rows: list[Any]) -> Any:
        leaves = [leaf if leaf is None else self.batch.rebatch(leaf) for leaf in rows]
        return pytree.unflatten(leaves, self.checks.spec)


def _hold_ended(alive: Tensor | None, new: Any, old: Any) -> Any:
    """Selects the new value for samples still running, and the old one for finished samples."""
    assert alive is not None
    if not isinstance(new, Tensor) and not isinstance(old, Tensor) and new == old:
        return new
    return torch.where(alive, new, old)


def _picked(rows: Any, index: Tensor) -> Any:
    return None if rows is None else rows.index_select(0, index)


# NOTE [Control flow in transforms that Dynamo traces]
_while_loop_uncompiled = tracing_state.skipped_while_tracing(
    while_loop,
    "torchlayers: torch.compile can't trace a while_loop inside a transform (grad, jvp or vmap). "
    "Leave out fullgraph=True: the transform then runs uncompiled; or compile it with "
    "torchlayers.compile, which captures both.",
)
