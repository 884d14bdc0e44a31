"""check_rules: the rules of a Layer, against what the layer means."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from torchlayers.core.errors import RuleError, TransformError
from torchlayers.core.torch_private import OpOverload, OpOverloadPacket
from torchlayers.transforms.layers.layer import Layer
from torchlayers.transforms.testing import operator_calls
from torchlayers.transforms.testing.operator_calls import VARIANTS, Call
from torchlayers.transforms.testing.rule_comparison import (
    Meaning,
    Parts,
    RuleComparison,
    name_of_operator,
)
from torchlayers.transforms.testing.rule_report import RuleReport

NESTS = ("vmap", "jvp", "grad", "itself", "compile")


def check_rules(
    layer: Layer | type[Layer],
    meaning: Meaning | None = None,
    *,
    parts: Parts,
    pack: Callable[[Any], Any] | None = None,
    unpack: Callable[[Any], Any] | None = None,
    agrees: Meaning | None = None,
    ops: Iterable[Any] | None = None,
    samples: Mapping[Any, Sequence[tuple[Any, ...]]] | None = None,
    skip: Mapping[Any, str] | None = None,
    variants: Iterable[str] = VARIANTS,
    nests: Iterable[str] = NESTS,
    dtypes: Sequence[torch.dtype] = (torch.float64,),
    limit: int = 8,
    atol: float = 1e-8,
    rtol: float = 1e-6,
    compare_values: bool = True,
) -> RuleReport:
    """Checks the rules of a :class:`torchlayers.Layer` against its meaning.

    Each operator that has a rule is called inside the layer, on the calls that torch's op_db makes
    of it: on tensors of the layer, all or one of them, the others being constants. The results are
    compared with the operator's without the layer, and their parts with the meaning.

    The meaning is given in one of two ways. ``meaning`` computes the parts, for layers that are
    derivatives or another function of the operator; ``agrees`` judges them, for layers whose parts
    are bounds, shapes or units.

    Args:
        layer: an instance, which is copied for each call, or a class, called without arguments.
        meaning: ``meaning(f, values, parts)`` returns the parts of f's result, or a tuple with
            those of each result. f is the operator as a function of the arguments that are
            tensors of the layer; values are these, and parts are theirs. ``None`` stands for zeros,
            also inside tuples and dicts, in it and in the parts that a rule returns.
        agrees: ``agrees(f, values, parts, results)`` raises AssertionError or returns a message if
            the results are wrong. They are pairs of ``value`` and ``parts``, which are None for a
            constant.
        parts: ``parts(value, generator)`` makes the parts of an argument, a pytree of tensors.
        pack, unpack: if the layer's parts are of a class that is no pytree: ``pack(tree)`` makes
            them of such a tree, and ``unpack(parts)`` a tree of them.
        ops: operators, packets and tags to be checked; by default all that there are rules for. An
            operator may be one without a rule: it is decomposed then, or whatever the layer does.
        samples: by operator or autograd.Function, the arguments of calls, instead of op_db's: for
            those that op_db has no sample for.
        skip: by operator or key of a rule, why it is not checked.
        variants: changes of the samples' tensors; by default all: other values, "zeros" (of both
            signs), "infinities", "nan" and "ties" (all equal); shapes, "empty" and "0-dim"; and a
            layout, "non-contiguous", which the parts get too. Left out where the operator does not
            accept them; shapes also for backward operators and those with an underscore in front,
            whose kernels don't check them.
        nests: transforms in which the layer is run; by default all: "vmap", which must give what a
            loop gives; "jvp" and "grad", the layer's derivatives (compared with the meaning's, or
            with finite differences if there is `agrees`); "itself", the layer in another one of the
            kind; and "compile". Random operators are not run in nests.
        dtypes: dtypes of op_db's samples.
        limit: the most samples of one operator. They are chosen to differ in the arguments given,
            in their dimensions and in other values.
        atol, rtol: tolerances of comparisons.
        compare_values: also compare the results' values. False for a layer that has none.
    Returns:
        A :class:`RuleReport`, which says what was checked.
    Raises:
        AssertionError: some results differ, or an operator with a rule has no sample. The message
            has a table: operator, sample, nest, expected, got. Its attribute ``report`` is the
            whole report.
        TransformError: not exactly one of meaning and agrees is given, or a variant or nest is
            unknown.
        RuleError: the layer has no rules, or ops has no operators.
    Example:
        >>> class Dual(torchlayers.Layer):
        ...     "Its parts are a tangent."
        >>> @Dual.rule(torch.ops.aten.mul.Tensor)
        ... def product_rule(layer, op, x, y):
        ...     dx, dy = (0.0 if z.parts is None else z.parts for z in (x, y))
        ...     return layer.tensor(x.value * y.value, dx * y.value + x.value * dy)
        >>> def tangent(value, generator):
        ...     return torch.randn(value.shape, generator=generator, dtype=value.dtype)
        >>> def derivative(f, values, tangents):
        ...     return torchlayers.jvp(f, values, tangents)[1]
        >>> report = check_rules(Dual, derivative, parts=tangent, nests=["vmap"], limit=1)
        >>> sorted(report.checked)
        ['aten.mul.Tensor']

        >>> class Interval(torchlayers.Layer):
        ...     "Its parts are bounds."
        >>> @Interval.rule(torch.ops.aten.neg)
        ... def neg(layer, op, x):
        ...     lower, upper = x.parts
        ...     return layer.tensor(-x.value, (-lower, -upper))
        >>> def around(value, generator):
        ...     return value - 1, value + 1
        >>> def holds(f, values, bounds, results):
        ...     [(lower, upper)], [(_, (least, most))] = bounds, results
        ...     for weight in (0.0, 0.3, 1.0):
        ...         y = f(lower + weight * (upper - lower))
        ...         if not bool(((least <= y) & (y <= most)).all()):
        ...             return "a point outside the bounds"
        >>> check_rules(Interval, parts=around, agrees=holds, variants=[], nests=[], limit=1)
        Traceback (most recent call last):
        AssertionError: torchlayers: check_rules: the rules of Interval:
        1 operator in 1 comparisons: 1 differ
        operator          sample                 nest  expected  got
        aten.neg.default  #0: (float64[20, 20])  alone agreement a point outside the bounds

    Source: torch.testing's op_db; gradcheck and opcheck have the same aim for autograd's formulas.
    """
    prototype = layer() if isinstance(layer, type) else layer
    if (meaning is None) == (agrees is None):
        raise TransformError("torchlayers: check_rules: give either meaning or agrees.")
    chosen = _check_names("variants", variants, VARIANTS), _check_names("nests", nests, NESTS)
    rules = type(prototype)._rules
    keys = [*rules.registered()] if ops is None else [*ops]
    if not keys:
        what = f"{type(prototype).__name__} has no rules" if ops is None else "ops is empty"
        raise RuleError(f"torchlayers: check_rules: {what}: there is nothing to check.")
    report = RuleReport()
    reasons = dict(skip or {})
    for key in keys:
        if key in reasons:
            report.skipped[name_of_operator(key)] = reasons[key]
    keys = [key for key in keys if key not in reasons]
    calls: dict[Any, list[Call]] = {}
    for op, arg_tuples in (samples or {}).items():
        if ops is None or any(operator_calls.matches(key, op) for key in keys):
            calls[op] = [Call(op, args, {}, f"given #{i}") for i, args in enumerate(arg_tuples)]
    sought = [key for key in keys if _may_be_in_op_db(key) and key not in calls]
    if sought:
        recorded = operator_calls.recorded(rules, sought, dtypes, limit)
        calls |= {
            op: calls_of_op
            for op, calls_of_op in recorded.items()
            if calls_of_op and op not in calls
        }
    for op in [op for op in calls if op in reasons]:
        report.skipped[name_of_operator(op)] = reasons[op]
        del calls[op]
    report.without_sample = [
        name_of_operator(key)
        for key in keys
        if not any(operator_calls.matches(key, op) for op in calls)
    ]
    check = RuleComparison(
        prototype, meaning, agrees, parts, pack, unpack, *chosen, atol, rtol, compare_values, report
    )
    with operator_calls.preserve_random_state():
        for op in sorted(calls, key=name_of_operator):
            check.run(op, calls[op])
    if report.failures or report.without_sample:
        name = type(prototype).__name__
        error: Any = AssertionError(f"torchlayers: check_rules: the rules of {name}:\n{report!r}")
        error.report = report
        raise error
    return report


def check_rule(
    layer: Layer | type[Layer], op: Any, meaning: Meaning | None = None, **options: Any
) -> RuleReport:
    """Checks one rule of a :class:`torchlayers.Layer` against the layer's meaning.

    Args:
        layer: as for :func:`check_rules`.
        op: an operator, a packet, an autograd.Function or a tag.
        meaning: as for check_rules.
        options: the other arguments of check_rules.
    Returns:
        A :class:`RuleReport`.
    Raises:
        AssertionError: some results differ, or there is no sample.
    Example:
        >>> class Dual(torchlayers.Layer):
        ...     pass
        >>> @Dual.rule(torch.ops.aten.sin)
        ... def sin(layer, op, x):
        ...     return layer.tensor(x.value.sin(), x.parts * x.value.sin())  # should be cos
        >>> check_rule(
        ...     Dual,
        ...     torch.ops.aten.sin,
        ...     lambda f, values, tangents: torchlayers.jvp(f, values, tangents)[1],
        ...     parts=lambda value, generator: torch.ones_like(value),
        ...     samples={torch.ops.aten.sin.default: [(torch.zeros(2),)]},
        ...     variants=["ties"],
        ... )
        Traceback (most recent call last):
        AssertionError: torchlayers: check_rules: the rules of Dual:
        1 operator in 2 comparisons: 2 differ
        operator          sample                         nest   expected               got
        aten.sin.default  given #0: (float32[2])         alone  parts at (0): 1        0
        aten.sin.default  given #0, ties: (float32[2])   alone  parts at (0): 0.877583 0.479426
    """
    return check_rules(layer, meaning, ops=[op], **options)


def _check_names(name: str, names: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    chosen = tuple(names)
    for choice in chosen:
        if choice not in known:
            raise TransformError(
                f"torchlayers: check_rules: {name} has {choice!r}. There are {', '.join(known)}."
            )
    return chosen


def _may_be_in_op_db(key: Any) -> bool:
    """op_db has operators of torch, and a few that it defines itself."""
    if isinstance(key, (OpOverload, OpOverloadPacket)):
        return str(key).split(".")[0] in ("aten", "prims", "_torch_testing")
    return isinstance(key, str)
