"""Statements about operators of the user's own, in the words of csrc/rules (rules/table.h)."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.errors import RuleError
from torchlayers.core.operator_rules import custom_rules
from torchlayers.core.operator_rules.custom_rules import overload_of
from torchlayers.core.operator_schema import schema_of
from torchlayers.core.torch_private import OpOverload, torch_c
from torchlayers.transforms.jvp import jvp
from torchlayers.transforms.layers import rule_table

__all__ = ["statement"]

TermFunction = Callable[..., Tensor | None]
ALONG = ("", "reduces", "scans", "mixes", "matrices")


def statement(
    op: Any,
    *,
    terms: dict[str, TermFunction] | None = None,
    linear_in: Sequence[str] = (),
    transposes: dict[str, Callable[..., Tensor]] | None = None,
    step: bool = False,
    piecewise_linear: bool = False,
    gathers: bool = False,
    along: str = "",
    contracts: tuple[str, str, str] | None = None,
    replace: bool = False,
) -> None:
    """States once what an operator is; every transform follows from it.

    jvp, grad, vmap, jet, laplacian, sparsity and the tags of a :class:`Layer`'s rules read the
    statement, as they read those about torch's operators. terms, linear_in and step give it its
    derivatives; without one of them those of torch.library, :func:`jvp_rule` and :func:`vjp_rule`
    are used. The other words say which elements depend on which.

    Args:
        op: an operator without side effects, with one tensor as its result, such as the result of
            ``torch.library.custom_op``.
        terms: the operator is elementwise, with broadcasting, in these arguments. For each, by
            name, a function of a tangent and the operator's arguments that multiplies the tangent
            by the derivative; it gets the operator's result if it has a parameter ``y``. It calls
            differentiable operators. For complex numbers the operator is analytic.
        linear_in: the arguments in which the operator is linear, in each while the others are
            fixed.
        transposes: for each of linear_in, by name, the gradient by it: a function of the cotangent
            and the operator's arguments. Without it, grad uses what autograd knows of the operator.
        step: the derivative is zero: the operator counts, rounds or compares.
        piecewise_linear: the second derivative is zero near almost any point.
        gathers: each element of the result is an element of an argument, or zero, and the operator
            moves numbers of any kind in the same way.
        along: an element of the result depends on a line, or a plane, of the first argument along
            the dimensions that the argument ``dim`` names: "reduces" it to one element, "scans" it
            (depends on those before), "mixes" it; or on a matrix of a batch ("matrices").
        contracts: two arguments, and their dimensions and those of the result in the notation of
            einsum: the result is a sum of products. Other tensors are added to it.
        replace: replace what was stated before.
    Raises:
        RuleError: op is not an operator, writes to its arguments, has several results, or has a
            rule or statement already; an argument is not one of its tensors; a word of `along` is
            unknown.
    Example:
        >>> @torch.library.custom_op("mylib::softsign", mutates_args=())
        ... def softsign(x: torch.Tensor) -> torch.Tensor:
        ...     return x / (1 + x.abs())
        >>> torchlayers.extend.statement(
        ...     softsign, terms={"x": lambda t, x: t / (1 + x.abs()) ** 2}
        ... )
        >>> x = torch.tensor([1.0, 3.0])
        >>> torchlayers.grad(lambda x: softsign(x).sum())(x)
        tensor([0.2500, 0.0625])
        >>> torchlayers.laplacian(lambda x: softsign(x).sum())(x)
        tensor(-0.2812)
    """
    overload = overload_of("statement", op)
    schema = schema_of(overload)
    if len(schema.returns) != 1 or str(schema.returns[0].type) != "Tensor":
        raise RuleError(f"torchlayers: statement: {overload} does not return one tensor.")
    if along not in ALONG:
        raise RuleError(
            f"torchlayers: statement: along is one of {', '.join(map(repr, ALONG))}, got {along!r}."
        )
    by_place = {
        _place(overload, name): Term(overload, _place(overload, name), define)
        for name, define in (terms or {}).items()
    }
    linear = [_place(overload, name) for name in linear_in]
    gradients = {_place(overload, name): by for name, by in (transposes or {}).items()}
    if bool(by_place) + bool(linear) + step > 1:
        raise RuleError(
            f"torchlayers: statement: {overload} takes only one of terms, linear_in and step."
        )
    pair = None
    if contracts is not None:
        left, right, dims = contracts
        pair = (_place(overload, left), _place(overload, right), dims)
    if by_place:
        custom_rules.jvp_rule(overload, replace=replace)(_jvp_of_terms(overload, by_place))
        custom_rules.vjp_rule(overload, replace=replace)(_vjp_of_terms(overload, by_place))
        if {*by_place} == {*_tensor_places(overload)}:
            _register_vmap(op, overload)
    elif linear:
        custom_rules.jvp_rule(overload, replace=replace)(_jvp_of_linear(overload, linear))
        if gradients:
            custom_rules.vjp_rule(overload, replace=replace)(_vjp_of_linear(overload, gradients))
    elif step:
        custom_rules.jvp_rule(overload, replace=replace)(_jvp_of_step(overload))
        custom_rules.vjp_rule(overload, replace=replace)(_vjp_of_step)
    is_linear = len(linear) == 1 == len(_tensor_places(overload))
    facts = {
        "is_constant": False,
        "is_step": step,
        "is_linear": is_linear,
        "is_piecewise_linear": piecewise_linear or is_linear,
        "linear_in": linear,
        "is_linear_together": False,
        "elementwise_in": sorted(by_place),
        "gathers": gathers,
        "scatters": False,
        "slope": None,
        "along": along,
        "selects": False,
        "contracts": pair,
        "is_product": pair is not None,
    }
    rule_table.state(overload, facts, by_place)


class Term:
    """The derivative of an elementwise operator, as ``_C.OperatorTerm`` of torch's operators."""

    is_analytic = True
    reads_argument = True

    def __init__(self, op: OpOverload, place: int, define: TermFunction) -> None:
        self._op, self._place, self._define = op, place, define
        self.reads_result = "y" in inspect.signature(define).parameters

    def __call__(
        self,
        tangent: Tensor,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        results: Sequence[Tensor],
    ) -> Tensor | None:
        named = {**kwargs, "y": results[0]} if self.reads_result else kwargs
        return self._define(tangent, *_filled(self._op, args), **named)

    def push(
        self,
        tangent: Tensor,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        results: Sequence[Tensor],
        tangents: dict[int, Tensor],
        tangent_of_result: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """The term, and its tangent along those of the arguments and the result."""
        has_result = tangent_of_result is not None
        primals = [*(args[place] for place in tangents), *results[:has_result]]
        along = [*tangents.values(), *([tangent_of_result] if has_result else [])]
        if self(tangent, args, kwargs, results) is None:
            return None, None

        def func(*values: Tensor) -> Any:
            changed = list(args)
            for place, value in zip(tangents, values, strict=False):
                changed[place] = value
            return self(tangent, changed, kwargs, values[-1:] if has_result else results)

        return jvp(func, tuple(primals), tuple(along))


def _place(op: OpOverload, name: str) -> int:
    """The position of a tensor argument."""
    names = [argument.name for argument in schema_of(op).arguments]
    if name not in names or names.index(name) not in _tensor_places(op):
        raise RuleError(f"torchlayers: statement: {op} has no positional tensor argument {name!r}.")
    return names.index(name)


def _tensor_places(op: OpOverload) -> list[int]:
    return [
        i
        for i, argument in enumerate(schema_of(op).arguments)
        if str(argument.type) in ("Tensor", "Optional[Tensor]") and not argument.kwarg_only
    ]


def _filled(op: OpOverload, args: Sequence[Any]) -> list[Any]:
    """The positional arguments, those left out with their defaults."""
    rest = [a for a in schema_of(op).arguments if not a.kwarg_only][len(args) :]
    return [*args, *(argument.default_value for argument in rest)]


def _jvp_of_terms(op: OpOverload, terms: dict[int, Term]) -> Callable[..., Any]:
    def rule(primals: Any, tangents: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        result = op(*primals, **kwargs)
        total: Tensor | None = None
        for place, term in terms.items():
            if place < len(tangents) and tangents[place] is not None:
                part = term(tangents[place], primals, kwargs, [result])
                total = part if total is None else total if part is None else total + part
        return result, None if total is None else total.expand(result.shape)

    return rule


def _vjp_of_terms(op: OpOverload, terms: dict[int, Term]) -> Callable[..., Any]:
    def rule(g: Tensor, primals: Any, result: Tensor, **kwargs: Any) -> tuple[Any, ...]:
        def gradient(place: int) -> Tensor | None:
            if place not in terms or not isinstance(primals[place], Tensor):
                return None
            part = terms[place](g.conj(), primals, kwargs, [result])
            return None if part is None else part.conj().sum_to_size(primals[place].shape)

        return tuple(map(gradient, range(len(primals))))

    return rule


def _jvp_of_linear(op: OpOverload, places: Sequence[int]) -> Callable[..., Any]:
    def rule(primals: Any, tangents: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        total: Tensor | None = None
        for place in places:
            if tangents[place] is not None:
                changed = [*primals[:place], tangents[place], *primals[place + 1 :]]
                part = op(*changed, **kwargs)
                total = part if total is None else total + part
        return op(*primals, **kwargs), total

    return rule


def _vjp_of_linear(op: OpOverload, gradients: dict[int, Any]) -> Callable[..., Any]:
    def rule(g: Tensor, primals: Any, result: Tensor, **kwargs: Any) -> tuple[Any, ...]:
        filled = _filled(op, primals)
        return tuple(
            gradients[place](g, *filled, **kwargs) if place in gradients else None
            for place in range(len(primals))
        )

    return rule


def _jvp_of_step(op: OpOverload) -> Callable[..., Any]:
    def rule(primals: Any, tangents: Any, **kwargs: Any) -> tuple[Tensor, None]:
        return op(*primals, **kwargs), None

    return rule


def _vjp_of_step(g: Tensor, primals: Any, result: Tensor, **kwargs: Any) -> tuple[None, ...]:
    return (None,) * len(primals)


def _register_vmap(op: Any, overload: OpOverload) -> None:
    """The batch in front, and dimensions of 1 behind it where operands have fewer."""
    if torch_c._dispatch_has_kernel_for_dispatch_key(
        str(schema_of(overload).name), "FuncTorchBatched"
    ):
        return

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any, **kwargs: Any) -> Any:
        pairs = [(x, d) for x, d in zip(args, in_dims, strict=True) if isinstance(x, Tensor)]
        ndim = max(x.dim() - (d is not None) for x, d in pairs)

        def aligned(x: Any, dim: int | None) -> Any:
            if not isinstance(x, Tensor) or dim is None:
                return x
            x = x.movedim(dim, 0)
            return x.reshape(x.shape[0], *[1] * (ndim + 1 - x.dim()), *x.shape[1:])

        return overload(*map(aligned, args, in_dims), **kwargs), 0

    torch.library.register_vmap(op, rule)
