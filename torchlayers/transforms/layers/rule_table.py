"""The rules of a layer written in Python, by operator, by packet of overloads, or by tag."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from torchlayers import _C
from torchlayers.core import operator_schema
from torchlayers.core.errors import RuleError
from torchlayers.core.operator_schema import schema_of
from torchlayers.core.operators import aten, present
from torchlayers.core.torch_private import (
    CustomOpDef,
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
)
from torchlayers.transforms import decompositions

Rule = Callable[..., Any]


# What was stated of operators in Python: the facts, and the terms by position.
_STATED: dict[Any, tuple[Any, dict[int, Any]]] = {}


def state(op: OpOverload, stated: dict[str, Any], terms: dict[int, Any]) -> None:
    """Adds a statement to those of csrc/rules. Rules that were looked up are looked up again."""
    _STATED[op] = (stated, terms)
    facts.cache_clear()
    terms_of.cache_clear()
    for table in _ROOTS:
        table._forget()


@functools.cache
def facts(op: Any) -> "_C.OperatorFacts":
    """What csrc/rules says of an operator, or a user. Arguments are numbered as in the schema."""
    if op in _STATED:
        return _STATED[op][0]  # type: ignore[no-any-return]
    return _C.operator_facts(schema_of(op).name, schema_of(op).overload_name)


@functools.cache
def terms_of(op: Any) -> "dict[int, _C.OperatorTerm]":
    """The terms of the arguments in which an operator is elementwise, by position."""
    if op in _STATED:
        return _STATED[op][1]
    name = schema_of(op).name, schema_of(op).overload_name
    terms = {place: _C.term(*name, place) for place in facts(op)["elementwise_in"]}
    return {place: term for place, term in terms.items() if term is not None}


@functools.cache
def is_function_of_one(op: Any) -> bool:
    """Whether it is elementwise in its one tensor, and not linear or piecewise so: exp, tan."""
    if not isinstance(op, OpOverload):
        return False
    tensors = [argument for argument in schema_of(op).arguments if str(argument.type) == "Tensor"]
    is_curved = not facts(op)["is_piecewise_linear"]
    return is_curved and len(tensors) == 1 and facts(op)["elementwise_in"] == [0]


@functools.cache
def defaults(op: Any) -> dict[str, Any]:
    """The default values of an operator's keyword-only arguments."""
    arguments = schema_of(op).arguments if isinstance(op, OpOverload) else ()
    return {
        argument.name: argument.default_value
        for argument in arguments
        if argument.kwarg_only and argument.has_default_value()
    }


def reads_no_parts(op: Any) -> bool:
    """Whether its results depend on the values or shapes of its arguments alone: factories,
    ``item()`` and whatever returns no tensor, and random operators that are not decomposed."""
    if not isinstance(op, OpOverload):
        return False
    if op.overloadpacket in _FACTORIES:
        return True
    if not any("Tensor" in str(result.type) for result in schema_of(op).returns):
        return True
    name = schema_of(op).name, schema_of(op).overload_name
    return operator_schema.is_random(op) and decompositions.find(*name) is None


# Their results depend on the shape, dtype and device of their argument alone.
_FACTORIES = {
    aten.empty_like,
    aten.full_like,
    aten.new_empty,
    aten.new_empty_strided,
    aten.new_full,
    aten.new_ones,
    aten.new_zeros,
    aten.ones_like,
    aten.zeros_like,
}

# Of what a tag's rule is the rule, unless the operator has its own.
TAGS: dict[str, Callable[[Any], bool]] = {
    "any": lambda op: not operator_schema.is_composite(op) and not reads_no_parts(op),
    "contraction": lambda op: facts(op)["contracts"] is not None,
    "constant": lambda op: facts(op)["is_constant"] or facts(op)["is_step"],
    "elementwise": lambda op: bool(facts(op)["elementwise_in"]),
    "linear": lambda op: bool(facts(op)["linear_in"]),
    "matrix function": lambda op: facts(op)["along"] == "matrices",
    "mixing": lambda op: facts(op)["along"] == "mixes",
    "piecewise linear": lambda op: facts(op)["is_piecewise_linear"],
    "pointwise": lambda op: torch.Tag.pointwise in op.tags,
    "random": operator_schema.is_random,
    "reduction": lambda op: facts(op)["along"] == "reduces" or torch.Tag.reduction in op.tags,
    "riccati": lambda op: facts(op)["slope"] is not None,
    "scan": lambda op: facts(op)["along"] == "scans",
    "scatter": lambda op: facts(op)["scatters"],
    "selection": lambda op: facts(op)["selects"],
    "structural": lambda op: facts(op)["gathers"] or operator_schema.is_view(op),
    "transposed window": lambda op: facts(op)["along"] == "transposed windows",
    "view": operator_schema.is_view,
    "window": lambda op: facts(op)["along"] == "windows",
}


# The tables without a base.
_ROOTS: "weakref.WeakSet[RuleTable]" = weakref.WeakSet()


class RuleTable:
    """The rules of one class of layers. What it lacks is looked up in those of its base class."""

    def __init__(self, owner: str, base: "RuleTable | None") -> None:
        self._owner = owner
        self._base = base
        self._rules: dict[Any, Rule] = {}
        self._resolved: dict[Any, Rule | None] = {}
        self.cache = _C.RuleCache()  # the same for operators that C++ calls a rule of
        self._whole: dict[OpOverload, bool] = {}
        self._users: list[RuleTable] = []
        if base is not None:
            base._users.append(self)
        else:
            _ROOTS.add(self)

    def add(self, keys: tuple[Any, ...], rule: Rule) -> None:
        for key in present(keys):
            self._rules[self._checked(key)] = rule
        self._forget()

    def find(self, op: Any) -> Rule | None:
        """The rule for an operator or an autograd.Function, or None."""
        try:
            return self._resolved[op]
        except KeyError:
            rule = self._resolved[op] = self._look_up(op)
            return rule

    def takes_whole(self, op: OpOverload) -> bool:
        """Whether a composite operator has a rule of its own, and is not decomposed: by overload,
        or by a packet all of whose overloads are composite."""
        try:
            return self._whole[op]
        except KeyError:
            keys = (op, op.overloadpacket) if _is_composite(op.overloadpacket) else (op,)
            is_whole = any(key in table._rules for key in keys for table in self._lineage())
            self._whole[op] = is_whole
            return is_whole

    def registered(self) -> list[Any]:
        """What there are rules for, the base classes' first."""
        return list(dict.fromkeys([*(self._base.registered() if self._base else ()), *self._rules]))

    def _look_up(self, op: Any) -> Rule | None:
        named: list[Any] = [op]
        view = None
        if isinstance(op, OpOverload):
            view = _view_copied_by(op)
            named += [op.overloadpacket] + ([view, view.overloadpacket] if view else [])
        lineage = self._lineage()
        for key in named:
            for table in lineage:
                if key in table._rules:
                    return table._rules[key]
        if not isinstance(op, OpOverload) or operator_schema.writes(op):
            return None
        for table in lineage:
            for tag, rule in table._rules.items():
                if isinstance(tag, str) and TAGS[tag](view or op):
                    return rule
        return None

    def _lineage(self) -> "list[RuleTable]":
        return [self, *(self._base._lineage() if self._base is not None else ())]

    def _forget(self) -> None:
        self._resolved.clear()
        self.cache.forget()
        self._whole.clear()
        for user in self._users:
            user._forget()

    def _checked(self, key: Any) -> Any:
        if isinstance(key, CustomOpDef):
            key = key._opoverload
        if isinstance(key, OpOverload) and schema_of(key).is_mutable:
            raise RuleError(
                f"torchlayers: {self._owner}.rule: {key} writes to its arguments. Writes are "
                "replaced by operators without side effects before rules are called: register the "
                "rule for the operator that returns a new tensor."
            )
        if _is_composite(key) and _may_alias(key):
            raise RuleError(
                f"torchlayers: {self._owner}.rule: {key} is composite, and may return a view of an "
                "argument, so it is decomposed before a layer sees it. Register rules for the "
                "operators that it calls."
            )
        if isinstance(key, str) and key not in TAGS:
            raise RuleError(
                f"torchlayers: {self._owner}.rule: no tag is named {key!r}. There are "
                f"{', '.join(sorted(TAGS))}."
            )
        if isinstance(key, (OpOverload, OpOverloadPacket, HigherOrderOperator, str)):
            return key
        if isinstance(key, type) and issubclass(key, torch.autograd.Function):
            return key
        raise RuleError(
            f"torchlayers: {self._owner}.rule takes operators (torch.ops.aten.mul.Tensor, or "
            "torch.ops.aten.mul for all its overloads, or the result of torch.library.custom_op), "
            f"autograd.Functions and tags, got {type(key).__name__} ({key!r})."
        )


def _is_composite(key: Any) -> bool:
    """Whether an operator, or each overload of a packet, calls other operators."""
    if isinstance(key, OpOverloadPacket):
        overloads = _overloads(key)
        return bool(overloads) and all(operator_schema.is_composite(op) for op in overloads)
    return isinstance(key, OpOverload) and operator_schema.is_composite(key)


def _may_alias(key: Any) -> bool:
    """Whether an operator, or an overload of a packet, may return its argument or a view of it."""
    ops = _overloads(key) if isinstance(key, OpOverloadPacket) else [key]
    return any(operator_schema.returns_alias(op) for op in ops)


def _overloads(packet: OpOverloadPacket) -> list[OpOverload]:
    """The overloads of a packet that do not write to their arguments, and are operators."""
    names: list[str] = packet.overloads()  # type: ignore[no-untyped-call]
    overloads = [getattr(packet, name) for name in names]
    exists = operator_schema.is_dispatched  # not einsum.sublist
    return [op for op in overloads if not schema_of(op).is_mutable and exists(op)]


def _view_copied_by(op: OpOverload) -> OpOverload | None:
    """slice, for slice_copy: functionalize may replace a view by its copy, which has its rule."""
    view = _C.view_copied_by(schema_of(op).name, schema_of(op).overload_name)
    return None if view is None else operator_schema.overload(*view)
