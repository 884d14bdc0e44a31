"""Converts the original's arguments to f's inputs, and f's outputs to the original's results."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.graph.errors import GraphError
from torchlayers.graph.fx.normalize import NormalizedGraph


def places(argnums: int | Sequence[int] | None, count: int) -> list[int] | None:
    """Returns argnums as positions among the arguments' leaves; None for the default."""
    if argnums is None:
        return None
    chosen = argnums if isinstance(argnums, int) else tuple(argnums)
    return [] if chosen == () else list(pytree.positions("differentiate", chosen, count))


class Arguments:
    def __init__(self, program: NormalizedGraph) -> None:
        inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
        self._program = program
        self._names = [node.name for node in inputs[: program.arguments]]
        self._updated = {id(state) for state, _ in program.updates}
        self._written = {argument for argument, _ in program.written}
        outputs = next(iter(reversed(program.graph.nodes))).args[0]
        self._results = len(outputs) - len(program.updates) - len(program.written)
        # Results that are an argument after a write to it, with the position of that argument.
        self._returned = {
            i: argument
            for argument, place in program.written
            for i in range(self._results)
            if outputs[i] is outputs[place]
        }

    def flatten(self, *args: Any, **kwargs: Any) -> list[Any]:
        leaves = self._leaves(args, kwargs)
        # These are written after the call, and what the call saves must not change.
        for i in self._written:
            leaves[i] = leaves[i].clone()
        return leaves + [self._read_state(state) for state in self._program.state]

    def unflatten(self, outputs: Sequence[Any], args: Any, kwargs: Any) -> Any:
        """Returns the original's result. Writes to what the original writes to."""
        for state, place in self._program.updates:
            with torch.no_grad():
                state.read().copy_(outputs[place])
        results = list(outputs[: self._results])
        if self._written:
            leaves = self._leaves(args, kwargs)
            for argument, place in self._program.written:
                leaves[argument].copy_(outputs[place])
            for i, argument in self._returned.items():
                results[i] = leaves[argument]
        return pytree.unflatten(results, self._program.result)

    def _leaves(self, args: Any, kwargs: Any) -> list[Any]:
        try:
            bound = self._program.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise GraphError(
                f"torchlayers: wrong arguments for a differentiated graph: {error}."
            ) from None
        bound.apply_defaults()
        leaves, structure = pytree.flatten(tuple(bound.arguments.values()))
        expected = self._program.structure
        if len(leaves) != len(self._names) or (expected is not None and structure != expected):
            what = "" if expected is None else f", as {pytree.describe(expected)}"
            raise GraphError(
                f"torchlayers: the graph was differentiated for {len(self._names)} inputs "
                f"({', '.join(self._names)}), pytrees flattened{what}; got {len(leaves)}, as "
                f"{pytree.describe(structure)}."
            )
        for name, leaf, like in zip(self._names, leaves, self._program.expected, strict=True):
            _check(name, leaf, like)
        return leaves

    def _read_state(self, state: Any) -> Tensor:
        tensor: Tensor = state.read()
        return tensor.clone() if id(state) in self._updated else tensor


def _check(name: str, leaf: Any, expected: Any) -> None:
    """Checks an argument's shape and number, which are fixed by the trace unless symbolic."""
    if isinstance(expected, (bool, int, float, complex, str)) and leaf != expected:
        raise GraphError(
            f"torchlayers: the graph was differentiated for `{name}`={expected!r}, which is now a "
            f"constant in it; got {leaf!r}. Differentiate it again for that value."
        )
    if not isinstance(expected, Tensor):
        return
    if not isinstance(leaf, Tensor):
        raise GraphError(
            f"torchlayers: the differentiated graph's input `{name}` is a tensor; got "
            f"{type(leaf).__name__}."
        )
    fits = len(leaf.shape) == len(expected.shape) and all(
        not isinstance(size, int) or size == actual
        for size, actual in zip(expected.shape, leaf.shape, strict=True)
    )
    if not fits or leaf.dtype != expected.dtype:
        raise GraphError(
            f"torchlayers: the graph was differentiated for an input `{name}` of shape "
            f"{tuple(expected.shape)} and {expected.dtype}; got {tuple(leaf.shape)} and "
            f"{leaf.dtype}. Trace it with these, or with symbolic shapes."
        )
