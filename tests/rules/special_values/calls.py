"""Calls of the operators with rules, generated from their schemas.

Whether an operator is elementwise or selects by order is determined by calling it, so that a new
rule is tested automatically.
"""

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.support.expected_failures import in_this_torch
from tests.support.rule_tables import of_aten
from torchlayers import _C

FLAGS = ("condition", "mask")

# Values of non-tensor arguments, by name: each is tried, with the first one for the others.
ARGUMENTS: dict[str, list[Any]] = {
    "alpha": [1.5],
    "beta": [1.0, 2.0],
    "approximate": ["none", "tanh"],
    "correction": [1],
    "delta": [0.7],
    "dim": [0],
    "eps": [None, 0.1],
    "exponent": [0.5, -0.5, 0.0, 1, 2, 3, -1.0, -2.0, 2.0, 2.5, 1 / 3],
    "is_result": [False, True],
    "k": [2],
    "keepdim": [False, True],
    "max": [1.0],
    "min": [-1.0],
    "n": [1],
    "p": [2],
    "reduction": [0],
    "rounding_mode": [None, "floor"],
    "self": [2.0, 0.0, -1.5],
}


class Call(NamedTuple):
    """An operator with all its arguments, in which a Place stands for each tensor."""

    rule: str
    op: Callable[..., Any]
    arguments: tuple[Any, ...]
    flags: tuple[bool, ...]  # which of the tensors are boolean

    @property
    def id(self) -> str:
        others = [str(a) for a in self.arguments if not isinstance(a, Place)]
        return "-".join([self.rule.removeprefix("aten::"), *others])

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """The differentiable results."""
        given = [tensors[a.number] if isinstance(a, Place) else a for a in self.arguments]
        names = [a.name for a in self.op._schema.arguments if a.kwarg_only]
        positional = given[: len(given) - len(names)]
        named = dict(zip(names, given[len(positional) :], strict=True))
        returned = self.op(*positional, **named)
        results = returned if isinstance(returned, tuple | list) else [returned]
        return [y for y in results if y.is_floating_point()]


class Place(NamedTuple):
    """The position of a tensor among the arguments."""

    number: int


def overload(rule: str) -> Any:
    name, _, which = rule.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, name), which or "default")


def calls_of(rule: str) -> Iterator[Call]:
    """One call for each combination of argument values; none if it has arguments of other kinds."""
    op = overload(rule)
    if any(argument.alias_info for argument in op._schema.arguments):
        return  # a view, or an operator that writes
    choices: list[list[Any]] = []
    flags: list[bool] = []
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if kind in ("Tensor", "Optional[Tensor]"):
            choices.append([Place(len(flags))])
            flags.append(argument.name in FLAGS)
        elif kind == "number" and argument.name not in ARGUMENTS:
            choices.append([1.5])
        elif argument.name == "dim" and "List" in kind:
            choices.append([[0], *([[]] if argument.default_value == [] else [])])
        elif argument.name in ARGUMENTS and "List" not in kind:
            choices.append(ARGUMENTS[argument.name])
        elif argument.has_default_value():
            choices.append([argument.default_value])
        else:
            choices.append([False if "bool" in kind else 0.5 if kind == "float" else 0])
    for arguments in itertools.product(*choices):
        yield Call(rule, op, arguments, tuple(flags))


def ordinary(count: int, length: int, flags: tuple[bool, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    values = [
        torch.rand(length, generator=generator, dtype=torch.float64) * 0.8 + 0.1
        for _ in range(count)
    ]
    return [x > 0.5 if flag else x for x, flag in zip(values, flags, strict=True)]


def results_or_none(call: Call, tensors: list[Tensor]) -> list[Tensor] | None:
    """None if the call is rejected, or gives sparse tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            results = call(*tensors)
        except (RuntimeError, TypeError, IndexError, ValueError):
            return None
    are_dense = all(result.layout is torch.strided for result in results)
    return results if results and are_dense else None


def is_elementwise(call: Call) -> bool:
    """Whether a new first element of an argument changes only the first element of the results."""
    tensors = ordinary(len(call.flags), 6, call.flags)
    results = results_or_none(call, tensors)
    if results is None or any(y.shape != (6,) for y in results):
        return False
    depends = torch.Tag.pointwise in call.op.tags
    for place, x in enumerate(tensors):
        changed = x.clone()
        changed[0] = ~x[0] if call.flags[place] else x[0] * 0.5 + 0.01
        others = results_or_none(call, [*tensors[:place], changed, *tensors[place + 1 :]])
        for y, other in zip(results, others or [], strict=True):
            if not torch.equal(y[1:].nan_to_num(7), other[1:].nan_to_num(7)):
                return False
            depends = depends or bool(y[0] != other[0])
    return depends


def chooses_by_order(call: Call) -> bool:
    """Whether the results are elements of the argument, selected by value and not by position."""
    if len(call.flags) != 1:
        return False
    x, other = ordinary(2, 6, (False, False))
    results, of_other = (results_or_none(call, [a]) for a in (x, other))
    of_sum = results_or_none(call, [x + other])
    if results is None or of_other is None or of_sum is None or is_elementwise(call):
        return False
    is_linear = all(
        y.shape == z.shape == s.shape and torch.allclose(y + z, s)
        for y, z, s in zip(results, of_other, of_sum, strict=True)
    )
    return not is_linear and all(bool(torch.isin(y, x).all()) for y in results)


@functools.cache
def all_calls() -> list[Call]:
    rules = in_this_torch(of_aten({*_C.jvp_rules(), *_C.vjp_rules()}))
    return [call for rule in rules for call in calls_of(rule)]


def elementwise_calls() -> list[Call]:
    return [call for call in all_calls() if is_elementwise(call)]


def ordering_calls() -> list[Call]:
    return [call for call in all_calls() if chooses_by_order(call)]


def differentiable_places(call: Call) -> list[int]:
    """The tensors with respect to which plain autograd differentiates the call."""
    tensors = ordinary(len(call.flags), 6, call.flags)
    places = []
    for place in range(len(tensors)):
        if not call.flags[place]:
            given = list(tensors)
            given[place] = tensors[place].clone().requires_grad_()
            try:
                recorded = [y for y in call(*given) if y.requires_grad]
                torch.autograd.grad([y.sum() for y in recorded], given[place])
            except (RuntimeError, IndexError):
                continue  # a constant, or without a formula
            places.append(place)
    return places


def of_places(
    call: Call, tensors: list[Tensor], places: list[int]
) -> tuple[Callable[..., list[Tensor]], list[Tensor]]:
    """The call as a function of some of its tensors, and those tensors."""

    def called(*primals: Tensor) -> list[Tensor]:
        given = list(tensors)
        for place, primal in zip(places, primals, strict=True):
            given[place] = primal
        return call(*given)

    return called, [tensors[place] for place in places]
