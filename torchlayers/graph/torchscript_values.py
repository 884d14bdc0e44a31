"""Converts Python arguments to a TorchScript graph's inputs, and its outputs to Python results."""

import collections
import inspect
import itertools
from collections.abc import Container, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.graph.errors import GraphError


class Arguments:
    """A graph's signature, and the conversion of arguments to its flat inputs."""

    structures: Sequence[_C.Structure]  # one for each argument
    bound: Sequence[Any]  # a module's tensors: the last inputs
    written: Sequence[int]  # the positions of those that a call writes to

    def __init__(
        self, graph: torch.Graph, schema: torch.FunctionSchema | None, is_method: bool
    ) -> None:
        if schema is None:
            names = [value.debugName() for value in graph.inputs()]
            self._signature = inspect.Signature(
                [
                    inspect.Parameter(f"input_{i}", inspect.Parameter.POSITIONAL_ONLY)
                    for i, _ in enumerate(names)
                ]
            )
        else:
            parameters: dict[str, inspect.Parameter] = {}
            for argument in schema.arguments[is_method:]:  # a method's first one is its module
                name = _new_name(argument.name, parameters)
                parameters[name] = _parameter(argument, name)
            self._signature = inspect.Signature(list(parameters.values()))

    def bind(self, /, *args: Any, **kwargs: Any) -> list[Any]:
        """Returns one value for each argument, with defaults filled in."""
        try:
            call = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise GraphError(
                f"torchlayers: the differentiated function takes {self._signature}: {error}."
            ) from None
        call.apply_defaults()
        return list(call.arguments.values())

    def flatten(self, /, *args: Any, **kwargs: Any) -> list[Any]:
        """Returns the inputs of the forward graph."""
        flat: list[Any] = []
        for name, structure, value in zip(
            self._signature.parameters, self.structures, self.bind(*args, **kwargs), strict=True
        ):
            _disassemble(structure, value, name, flat)
        bound = list(self.bound)
        for i in self.written:
            bound[i] = bound[i].clone()  # a derivative may need the old value
        return [*flat, *bound]


def _new_name(name: str, taken: Container[str]) -> str:
    """A trace may have several inputs of one name."""
    numbered = (f"{name}_{i}" for i in itertools.count(1))
    return next(new for new in itertools.chain([name], numbered) if new not in taken)


def _parameter(argument: Any, name: str) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY
        if argument.kwarg_only
        else inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=argument.default_value if argument.has_default_value() else inspect.Parameter.empty,
    )


def _disassemble(structure: _C.Structure, value: Any, name: str, flat: list[Any]) -> None:
    if structure.kind == "value":
        if isinstance(value, Tensor) and value.is_complex():
            raise GraphError(
                f"torchlayers: argument {name} is complex, and the gradients of TorchScript "
                "graphs are for real tensors. Pass real and imaginary parts, or differentiate "
                "with torchlayers.vjp."
            )
        flat.append(value)
        return
    if not isinstance(value, (tuple, list)) or len(value) != len(structure.parts):
        got = f"{len(value)}" if isinstance(value, (tuple, list)) else type(value).__name__
        raise GraphError(
            f"torchlayers: the graph was differentiated for a {structure.kind} of "
            f"{len(structure.parts)} as argument {name}, got {got}. Differentiate it again with "
            "example_inputs like these."
        )
    for i, (part, member) in enumerate(zip(structure.parts, value, strict=True)):
        _disassemble(part, member, f"{name}[{i}]", flat)


def assemble(structure: _C.Structure, values: Iterator[Any]) -> Any:
    """Returns flat outputs in the structure that the original returns."""
    if structure.kind == "value":
        return next(values)
    members = [assemble(part, values) for part in structure.parts]
    if structure.kind == "list":
        return members
    if structure.kind == "tuple":
        return tuple(members)
    return collections.namedtuple(structure.kind, structure.fields)(*members)
